/* SPDX-License-Identifier: MIT */
#include "base/desc.h"

#include <string.h>

#include "base/error.h"

static attune_status check_size(const void *theirs, size_t smallest, const char *name, uint32_t *size)
{
    if (!theirs)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s is NULL", name);
    memcpy(size, theirs, sizeof *size);
    if (*size < smallest)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "%s.struct_size is %u, expected at least %zu: set it to sizeof the struct before the call",
                            name, *size, smallest);
    return ATTUNE_OK;
}

attune_status attune__desc_read(void *ours, size_t our_size, const void *theirs, size_t smallest, const char *name)
{
    uint32_t size = 0;
    ATTUNE__TRY(check_size(theirs, smallest, name, &size));
    for (size_t i = our_size; i < size; i++)
        if (((const unsigned char *)theirs)[i])
            return attune__fail(
                ATTUNE_UNSUPPORTED,
                "%s has a field at byte %zu that this version of attune (%d.%d.%d) does not have: update "
                "the library or leave the field zero",
                name, i, ATTUNE_VERSION_MAJOR, ATTUNE_VERSION_MINOR, ATTUNE_VERSION_PATCH);
    memset(ours, 0, our_size);
    memcpy(ours, theirs, size < our_size ? size : our_size);
    /* The copy may be read in its turn. */
    size = (uint32_t)our_size;
    memcpy(ours, &size, sizeof size);
    return ATTUNE_OK;
}

attune_status attune__desc_write(void *theirs, const void *ours, size_t our_size, size_t smallest, const char *name)
{
    uint32_t size = 0;
    ATTUNE__TRY(check_size(theirs, smallest, name, &size));
    if (size > our_size)
        memset((unsigned char *)theirs + our_size, 0, size - our_size);
    memcpy((unsigned char *)theirs + sizeof size, (const unsigned char *)ours + sizeof size,
           (size < our_size ? size : our_size) - sizeof size);
    return ATTUNE_OK;
}
