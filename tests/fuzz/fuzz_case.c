/* SPDX-License-Identifier: MIT */
/*
 * Case folders: whatever is in their files, a problem that can be freed, or a message. The input is the files one after
 * another, each after a line "=== NAME"; what precedes the first is case.json.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/case.h"
#include "bench/timing/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MARK "\n=== "

static void write_file(const folder *f, const char *name, const uint8_t *data, size_t size)
{
    char path[400];
    (void)snprintf(path, sizeof path, "%s/%s", f->path, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file))
        abort();
}

static bool is_letter(uint8_t byte)
{
    return (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte == '_';
}

/* Where the next mark is, or the end. */
static size_t next_mark(const uint8_t *data, size_t size)
{
    for (size_t i = 0; i + sizeof MARK - 1 <= size; i++)
        if (!memcmp(data + i, MARK, sizeof MARK - 1))
            return i;
    return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static attune_instance *instance;
    static case_folder c;
    failure why = {{0}};
    folder f;
    if ((!instance && attune_instance_create(NULL, &instance) != ATTUNE_OK) || !folder_make(&f))
        abort();
    char name[80] = "case.json";
    const attune_dtype dtype = size % 3 == 0 ? ATTUNE_F16 : size % 3 == 1 ? ATTUNE_F32 : ATTUNE_BF16;
    while (name[0]) {
        const size_t part = next_mark(data, size);
        write_file(&f, name, data, part);
        data += part;
        size -= part;
        name[0] = '\0';
        if (size) {
            data += sizeof MARK - 1;
            size -= sizeof MARK - 1;
            size_t length = 0;
            while (length < size && length < 60 && is_letter(data[length]))
                length++;
            (void)snprintf(name, sizeof name, "%.*s.npy", (int)length, (const char *)data);
            data += length < size ? length + 1 : length;
            size -= length < size ? length + 1 : length;
        }
    }
    if (case_load(instance, f.path, dtype, &c, &why))
        case_free(&c);
    else if (!why.message[0])
        abort();
    folder_remove(&f);
    return 0;
}
