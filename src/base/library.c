/* SPDX-License-Identifier: MIT */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* RTLD_NODELETE, RTLD_NOLOAD, dl_iterate_phdr */
#endif
#include "base/library.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <dlfcn.h>
#if defined(__linux__)
#include <link.h>
#endif
#endif

#if defined(_WIN32)

void *attune__library_open(const char *name, unsigned flags, char *reason, size_t reason_size)
{
    HMODULE library = NULL;
    const DWORD keep = flags & ATTUNE__LIBRARY_KEEP ? GET_MODULE_HANDLE_EX_FLAG_PIN : 0;
    if (flags & ATTUNE__LIBRARY_LOADED) {
        if (!GetModuleHandleExA(keep, name, &library))
            library = NULL;
    } else {
        /* Drivers' loaders lie in the system's folder. */
        library = LoadLibraryExA(
            name, NULL, strpbrk(name, "/\\") ? LOAD_WITH_ALTERED_SEARCH_PATH : LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
        HMODULE pinned;
        if (library && keep)
            (void)GetModuleHandleExA(keep, name, &pinned);
    }
    if (!library)
        snprintf(reason, reason_size, "%s cannot be opened: Windows' error %lu", name, (unsigned long)GetLastError());
    return (void *)library;
}

void *attune__library_symbol(void *library, const char *name)
{
    FARPROC symbol = GetProcAddress((HMODULE)library, name);
    void *address;
    memcpy(&address, &symbol, sizeof address);
    return address;
}

void attune__library_close(void *library)
{
    if (library)
        FreeLibrary((HMODULE)library);
}

#else

#if defined(__linux__)
/* The first object is the program. */
static int look_for_interpreter(struct dl_phdr_info *object, size_t size, void *user)
{
    bool *const found = user;
    (void)size;
    for (unsigned i = 0; i < object->dlpi_phnum; i++)
        *found = *found || object->dlpi_phdr[i].p_type == PT_INTERP;
    return 1;
}
#endif

static bool is_linked_statically(void)
{
#if defined(__linux__)
    bool interpreter = false;
    dl_iterate_phdr(look_for_interpreter, &interpreter);
    return !interpreter;
#else
    return false;
#endif
}

void *attune__library_open(const char *name, unsigned flags, char *reason, size_t reason_size)
{
    if (is_linked_statically()) {
        snprintf(reason, reason_size, "%s cannot be opened by a program that is linked with -static", name);
        return NULL;
    }
    const int mode = RTLD_NOW | RTLD_LOCAL | (flags & ATTUNE__LIBRARY_KEEP ? RTLD_NODELETE : 0) |
                     (flags & ATTUNE__LIBRARY_LOADED ? RTLD_NOLOAD : 0);
    void *const library = dlopen(name, mode);
    if (!library) {
        const char *why = dlerror();
        snprintf(reason, reason_size, "%s", why ? why : name);
    }
    return library;
}

void *attune__library_symbol(void *library, const char *name)
{
    return dlsym(library, name);
}

void attune__library_close(void *library)
{
    if (library)
        dlclose(library);
}

#endif
