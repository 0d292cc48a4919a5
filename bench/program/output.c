/* SPDX-License-Identifier: MIT */
#include "bench/program/output.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool outputs_find(output *outputs, size_t count)
{
    bool ok = true;
    for (size_t i = 0; i < count; i++) {
        output *o = &outputs[i];
        if (!*o->path || !ok)
            continue;
        const int error = attune__file_find(&o->file, o->path);
        o->found = true;
        if (error == EISDIR) {
            cli_error("%s: %s is a folder, expected a file", o->option, o->path);
            ok = false;
        } else if (error) {
            cli_error("%s: %s cannot be written: %s", o->option, o->path, strerror(error));
            ok = false;
        }
        for (size_t j = 0; j < i && ok; j++)
            if (outputs[j].found && attune__file_same(&outputs[j].file, &o->file)) {
                cli_error("%s %s and %s %s are the same file: expected a file for each", outputs[j].option,
                          outputs[j].path, o->option, o->path);
                ok = false;
            }
    }
    return ok;
}

/* An output that is written in place, as a terminal or /dev/null, replaces nothing. */
bool outputs_spare(const output *outputs, size_t count, const char *option, const char *path)
{
    struct stat about;
    if (!path || !*path || stat(path, &about))
        return true;
    for (size_t i = 0; i < count; i++) {
        const attune__file *f = &outputs[i].file;
        if (outputs[i].found && f->exists && !f->direct && f->device == about.st_dev && f->number == about.st_ino) {
            cli_error("%s %s and %s %s are the same file: the output would replace the input, expected another file",
                      outputs[i].option, outputs[i].path, option, path);
            return false;
        }
    }
    return true;
}

bool outputs_spare_list(const output *outputs, size_t count, const char *option, const cli_list *list, bool named)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const char *equals = named ? strchr(list->value[i], '=') : NULL;
        if (!outputs_spare(outputs, count, option, equals ? equals + 1 : list->value[i]))
            return false;
    }
    return true;
}

FILE *outputs_text(const output *outputs, size_t count)
{
    struct stat about;
    for (size_t i = 0; i < count && !fstat(STDOUT_FILENO, &about); i++) {
        const attune__file *f = &outputs[i].file;
        if (outputs[i].found && f->direct && f->device == about.st_dev && f->number == about.st_ino)
            return stderr;
    }
    return stdout;
}

static bool write_one(output *o, size_t index, output_fn write, void *user)
{
    int error = attune__file_open(&o->file);
    const int stream_file = error ? -1 : fcntl(o->file.file, F_DUPFD_CLOEXEC, 0);
    FILE *stream = stream_file < 0 ? NULL : fdopen(stream_file, "wb");
    if (!stream) {
        error = error ? error : errno;
        if (stream_file >= 0)
            close(stream_file);
    } else {
        errno = 0;
        const bool written = write(user, index, stream) && !ferror(stream);
        error = ferror(stream) ? (errno ? errno : EIO) : 0;
        if (fclose(stream) && !error)
            error = errno;
        if (!written && !error)
            return false;
    }
    if (error)
        cli_error("%s: %s could not be written: %s", o->option, o->path, strerror(error));
    return !error;
}

bool outputs_write(output *outputs, size_t count, output_fn write, void *user)
{
    bool ok = true;
    for (int direct = 0; direct < 2; direct++)
        for (size_t i = 0; ok && i < count; i++)
            if (outputs[i].found && outputs[i].file.direct == (direct != 0))
                ok = write_one(&outputs[i], i, write, user);
    attune__file *files[OUTPUTS_MAX];
    size_t found = 0;
    for (size_t i = 0; i < count; i++)
        if (outputs[i].found)
            files[found++] = &outputs[i].file;
    const int error = ok ? attune__file_commit(files, found) : 0;
    for (size_t i = 0; error && i < count; i++)
        if (outputs[i].found && outputs[i].file.error)
            cli_error("%s: %s could not be written: %s", outputs[i].option, outputs[i].path, strerror(error));
    outputs_drop(outputs, count);
    return ok && !error;
}

void outputs_drop(output *outputs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (outputs[i].found)
            attune__file_drop(&outputs[i].file);
        outputs[i].found = false;
    }
}
