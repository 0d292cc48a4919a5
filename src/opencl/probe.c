/* SPDX-License-Identifier: MIT */
/*
 * The loader maps every driver that /etc/OpenCL/vendors lists into the process, and a broken one takes the process with
 * it. A child process tries first; if it does not survive, each driver is tried alone, and the one that fails is named.
 */
#define _GNU_SOURCE
#include "opencl/driver.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/library.h"

#define MOST_WAITS   15 /* of the timeout each */
#define VENDORS      "/etc/OpenCL/vendors"
#define MOST_VENDORS 64

/* In the child. */
static void enumerate(const char *library)
{
    int32_t (*platforms)(uint32_t, attune__cl_platform *, uint32_t *);
    int32_t (*devices)(attune__cl_platform, uint64_t, uint32_t, attune__cl_device *, uint32_t *);
    attune__cl_platform found[32];
    uint32_t count = 0;
    char why[256];
    void *const loaded = attune__library_open(library, 0, why, sizeof why);
    void *const symbols[2] = {loaded ? attune__library_symbol(loaded, "clGetPlatformIDs") : NULL,
                              loaded ? attune__library_symbol(loaded, "clGetDeviceIDs") : NULL};
    if (!symbols[0] || !symbols[1])
        return;
    memcpy(&platforms, &symbols[0], sizeof platforms);
    memcpy(&devices, &symbols[1], sizeof devices);
    if (platforms(32, found, &count) != CL_SUCCESS)
        return;
    for (uint32_t i = 0; i < count && i < 32; i++) {
        uint32_t unused;
        (void)devices(found[i], CL_DEVICE_TYPE_ALL, 0, NULL, &unused);
    }
}

/* The processor time of a process so far, in nanoseconds. */
static uint64_t worked(pid_t process)
{
    clockid_t clock;
    struct timespec time;
    if (clock_getcpuclockid(process, &clock) || clock_gettime(clock, &time))
        return 0;
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Waits for a child's byte. Where many processes load drivers at once a child may take minutes, but it works: it is
 * given up after `timeout` without work. */
static bool wait_for(pid_t child, int end, int timeout)
{
    struct pollfd wait = {.fd = end, .events = POLLIN};
    uint64_t before = 0;
    for (int i = 0; i < MOST_WAITS; i++) {
        int ready;
        do
            ready = poll(&wait, 1, timeout);
        while (ready < 0 && errno == EINTR);
        const uint64_t now = worked(child);
        if (ready || now == before)
            return ready > 0;
        before = now;
    }
    return false;
}

/* How the child ended: 0 = it survived, -1 = it did not answer in time, else the signal, or 256 if that is unknown. */
static int try_in_child(const char *library, const char *vendor, int timeout)
{
    int ends[2];
    if (pipe(ends))
        return 0; /* nothing can be tried: as without a probe */
    const pid_t child = fork();
    if (child == 0) {
        const int null = open("/dev/null", O_RDWR);
        (void)dup2(null, STDOUT_FILENO);
        (void)dup2(null, STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        signal(SIGSEGV, SIG_DFL);
        if (vendor)
            (void)setenv("OCL_ICD_VENDORS", vendor, 1);
        enumerate(library);
        _exit(write(ends[1], "", 1) != 1);
    }
    close(ends[1]);
    int ended = 0, status = 0;
    if (child > 0) {
        char byte;
        const bool ready = wait_for(child, ends[0], timeout), survived = ready && read(ends[0], &byte, 1) == 1;
        if (!ready) {
            kill(child, SIGKILL);
            ended = -1;
        }
        const bool known = waitpid(child, &status, 0) == child;
        if (!survived && !ended)
            ended = known && WIFSIGNALED(status) ? WTERMSIG(status) : 256;
    }
    close(ends[0]);
    return ended;
}

static void describe_end(int ended, const char *what, int timeout, char *reason, size_t size)
{
    if (ended == -1)
        snprintf(reason, size, "%s does not answer, for %.3g s: remove it or name the others in OCL_ICD_VENDORS", what,
                 timeout / 1000.0);
    else if (ended == 256)
        snprintf(reason, size, "%s ends the process that loads it: remove it or name the others in OCL_ICD_VENDORS",
                 what);
    else
        snprintf(reason, size, "%s crashes when it is loaded (%s): remove it or name the others in OCL_ICD_VENDORS",
                 what, strsignal(ended));
}

bool attune__opencl_probe(const char *library, int timeout, char *reason, size_t reason_size)
{
    const int all = try_in_child(library, NULL, timeout);
    if (!all)
        return true;
    describe_end(all, "an OpenCL driver", timeout, reason, reason_size);
    const char *given = attune__environment("OCL_ICD_VENDORS");
    const char *folder = given && *given ? given : VENDORS;
    DIR *const vendors = opendir(folder);
    const struct dirent *entry;
    while (vendors && (entry = readdir(vendors))) {
        const char *end = strrchr(entry->d_name, '.');
        char path[512];
        if (!end || strcmp(end, ".icd"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        const int one = try_in_child(library, path, timeout);
        if (one) {
            char what[600];
            snprintf(what, sizeof what, "the OpenCL driver of %.160s", path);
            describe_end(one, what, timeout, reason, reason_size);
            break;
        }
    }
    if (vendors)
        closedir(vendors);
    return false;
}
