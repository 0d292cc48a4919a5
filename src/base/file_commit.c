/* SPDX-License-Identifier: MIT */
/* All files or none, on every system. */
#include "base/file.h"

int attune__file_commit(attune__file *const *files, size_t count)
{
    int error = 0;
    for (size_t i = 0; i < count && !error; i++)
        if (files[i]->file >= 0)
            error = files[i]->error = attune__file_close(files[i]);
    for (size_t i = 0; i < count && !error; i++)
        error = files[i]->error = attune__file_publish(files[i], i + 1 < count);
    for (size_t i = 0; i < count && error; i++)
        attune__file_withdraw(files[i]);
    for (size_t i = 0; i < count; i++)
        attune__file_drop(files[i]);
    return error;
}
