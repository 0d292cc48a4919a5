/* SPDX-License-Identifier: MIT */
/* Files that are written as a whole: permissions, links, several at once, and what is left after a failure. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

static char folder[64];

static void enter(void)
{
    strcpy(folder, "/tmp/attune-file-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
    umask(022);
}

static void leave(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    cr_assert_eq(system(command), 0);
}

TestSuite(file, .init = enter, .fini = leave);

static int files_here(void)
{
    DIR *list = opendir(".");
    int count = 0;
    for (const struct dirent *at; (at = readdir(list));)
        count += strcmp(at->d_name, ".") != 0 && strcmp(at->d_name, "..") != 0;
    closedir(list);
    return count;
}

static int write_whole(const char *path, const char *text)
{
    attune__file f;
    int error = attune__file_find(&f, path);
    if (!error)
        error = attune__file_open(&f);
    if (!error)
        error = attune__file_write(&f, text, strlen(text));
    if (!error)
        error = attune__file_commit(&(attune__file *){&f}, 1);
    attune__file_drop(&f);
    attune__file_drop(&f);
    return error;
}

static bool holds(const char *path, const char *text)
{
    char got[64] = "";
    const int file = open(path, O_RDONLY);
    const ssize_t size = file < 0 ? -1 : read(file, got, sizeof got - 1);
    if (file >= 0)
        close(file);
    return size == (ssize_t)strlen(text) && !memcmp(got, text, strlen(text));
}

static mode_t mode_of(const char *path)
{
    struct stat about;
    cr_assert_eq(stat(path, &about), 0, "%s", path);
    return about.st_mode & 07777;
}

Test(file, permissions)
{
    cr_assert_eq(write_whole("new", "one"), 0);
    cr_assert_eq(mode_of("new"), 0644);
    umask(077);
    cr_assert_eq(write_whole("secret", "one"), 0);
    cr_assert_eq(mode_of("secret"), 0600);
    umask(022);
    const mode_t modes[] = {0600, 0640, 0666, 0400, 0755};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        cr_assert_eq(chmod("new", modes[i]), 0);
        cr_assert_eq(write_whole("new", "two"), 0);
        cr_assert_eq(mode_of("new"), modes[i]);
        cr_assert(holds("new", "two"));
    }
    if (geteuid() == 0) { /* a file of another user stays theirs */
        struct stat about;
        cr_assert_eq(chown("secret", 65534, 65534), 0);
        cr_assert_eq(write_whole("secret", "two"), 0);
        cr_assert(stat("secret", &about) == 0 && about.st_uid == 65534 && about.st_gid == 65534);
        cr_assert_eq(mode_of("secret"), 0600);
    }
    cr_assert_eq(files_here(), 2);
}

Test(file, a_link_is_replaced_and_not_followed)
{
    cr_assert_eq(write_whole("victim", "mine"), 0);
    cr_assert_eq(symlink("victim", "link"), 0);
    cr_assert_eq(symlink("nowhere", "dangling"), 0);
    cr_assert_eq(link("victim", "hard"), 0);
    const char *const names[] = {"link", "dangling", "hard", "./link", "sub/../link"};
    cr_assert_eq(mkdir("sub", 0700), 0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        cr_assert_eq(write_whole(names[i], "other"), 0);
        struct stat about;
        cr_assert(lstat(names[i], &about) == 0 && S_ISREG(about.st_mode), "%s", names[i]);
        cr_assert(holds(names[i], "other"));
        cr_assert(holds("victim", "mine"), "%s", names[i]);
    }
    cr_assert_neq(access("nowhere", F_OK), 0);
    cr_assert_eq(files_here(), 5);
}

Test(file, errors_come_before_the_work)
{
    attune__file f;
    cr_assert_eq(mkdir("sub", 0700), 0);
    const struct {
        const char *path;
        int error;
    } wrong[] = {{"", ENOENT},   {"none/x", ENOENT}, {"sub", EISDIR},    {"sub/", EISDIR},  {"sub/.", EISDIR},
                 {"..", EISDIR}, {"/", EISDIR},      {"new/x", ENOTDIR}, {"loop/x", ELOOP}, {"loop", ELOOP}};
    cr_assert_eq(write_whole("new", "one"), 0);
    cr_assert_eq(symlink("loop", "loop"), 0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cr_expect_eq(attune__file_find(&f, wrong[i].path), wrong[i].error, "%s", wrong[i].path);
        attune__file_drop(&f);
    }
    char endless[5000];
    memset(endless, 'x', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    cr_assert_eq(attune__file_find(&f, endless), ENAMETOOLONG);
    attune__file_drop(&f);
    endless[4500] = '/';
    cr_assert_eq(attune__file_find(&f, endless), ENAMETOOLONG);
    attune__file_drop(&f);
    endless[4500] = 'x';
    endless[255] = '\0';
    cr_assert_eq(write_whole(endless, "the longest name"), 0);
    cr_assert(holds(endless, "the longest name"));
    cr_assert_eq(unlink(endless), 0);
    if (geteuid() == 0) {
        cr_assert_eq(chmod(".", 0755), 0);
        cr_assert_eq(seteuid(65534), 0);
        cr_assert_eq(attune__file_find(&f, "new"), EACCES);
        attune__file_drop(&f);
        cr_assert_eq(seteuid(0), 0);
    }
    cr_assert_eq(files_here(), 3);
}

static void expect_same(const char *a, const char *b, bool same)
{
    attune__file x, y;
    cr_assert_eq(attune__file_find(&x, a), 0, "%s", a);
    cr_assert_eq(attune__file_find(&y, b), 0, "%s", b);
    cr_expect_eq(attune__file_same(&x, &y), same, "%s and %s", a, b);
    cr_expect_eq(attune__file_same(&y, &x), same, "%s and %s", b, a);
    attune__file_drop(&x);
    attune__file_drop(&y);
}

Test(file, one_file_by_two_names)
{
    cr_assert_eq(mkdir("sub", 0700), 0);
    cr_assert_eq(symlink("sub", "way"), 0);
    cr_assert_eq(write_whole("a", "one"), 0);
    cr_assert_eq(write_whole("b", "one"), 0);
    cr_assert_eq(link("a", "hard"), 0);
    cr_assert_eq(symlink("a", "soft"), 0);
    char absolute[128];
    snprintf(absolute, sizeof absolute, "%s/new", folder);
    expect_same("a", "a", true);
    expect_same("a", "./a", true);
    expect_same("a", "hard", true);
    expect_same("a", "soft", true);
    expect_same("a", "sub/../a", true);
    expect_same("sub/new", "way/new", true);
    expect_same("new", absolute, true);
    expect_same("new", "sub/../new", true);
    expect_same("a", "b", false);
    expect_same("new", "newer", false);
    expect_same("new", "sub/new", false);
    expect_same("a", "new", false);
    expect_same("/dev/null", "/dev/../dev/null", true);
    expect_same("/dev/null", "/dev/full", false);
}

/* A device, a pipe and what the process has open are written in place. */
Test(file, what_is_no_regular_file)
{
    struct stat about;
    cr_assert_eq(write_whole("/dev/null", "gone"), 0);
    cr_assert(stat("/dev/null", &about) == 0 && S_ISCHR(about.st_mode));
    cr_assert_eq(write_whole("/dev/full", "gone"), ENOSPC);
    cr_assert_eq(mkfifo("pipe", 0600), 0);
    const int reader = open("pipe", O_RDONLY | O_NONBLOCK);
    cr_assert_eq(write_whole("pipe", "through"), 0);
    char got[16] = "";
    cr_assert_eq(read(reader, got, sizeof got), 7);
    cr_assert_str_eq(got, "through");
    cr_assert(stat("pipe", &about) == 0 && S_ISFIFO(about.st_mode));
    close(reader);
    cr_assert_eq(symlink("/dev/null", "null"), 0);
    cr_assert_eq(write_whole("null", "gone"), 0);
    cr_assert(lstat("null", &about) == 0 && S_ISLNK(about.st_mode));
    const int open_file = open("held", O_WRONLY | O_CREAT, 0600);
    char path[3][64];
    snprintf(path[0], sizeof path[0], "/dev/fd/%d", open_file);
    snprintf(path[1], sizeof path[1], "/proc/self/fd/%d", open_file);
    strcpy(path[2], "descriptor");
    cr_assert_eq(symlink(path[1], path[2]), 0);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(write_whole(path[i], "+"), 0, "%s", path[i]);
    cr_assert(lstat("descriptor", &about) == 0 && S_ISLNK(about.st_mode));
    cr_assert(fstat(open_file, &about) == 0 && about.st_nlink == 1 && about.st_size == 3);
    cr_assert(holds("held", "+++"));
    close(open_file);
    cr_assert_eq(files_here(), 4);
}

/* A pipe whose reader has gone is an error, not the end of the process; a signal of one's own stays what it was. */
Test(file, a_pipe_without_a_reader)
{
    sigset_t broken, pending;
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    cr_assert_eq(mkfifo("pipe", 0600), 0);
    for (int held = 0; held < 2; held++) {
        attune__file f;
        const int reader = open("pipe", O_RDONLY | O_NONBLOCK);
        cr_assert_eq(attune__file_find(&f, "pipe"), 0);
        cr_assert_eq(attune__file_open(&f), 0);
        cr_assert_eq(attune__file_write(&f, "through", 7), 0);
        close(reader);
        if (held)
            cr_assert(!pthread_sigmask(SIG_BLOCK, &broken, NULL) && !raise(SIGPIPE));
        cr_assert_eq(attune__file_write(&f, "lost", 4), EPIPE);
        attune__file_drop(&f);
        cr_assert_eq(sigpending(&pending), 0);
        cr_assert_eq(sigismember(&pending, SIGPIPE), held);
    }
}

/* Opens two, writes to them, and lets `interfere` happen before they are given their names. */
static int write_two(const char *first, const char *second, void (*interfere)(void))
{
    attune__file f[2];
    int error = 0;
    const char *const paths[2] = {first, second};
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(attune__file_find(&f[i], paths[i]), 0);
        cr_assert_eq(attune__file_open(&f[i]), 0);
    }
    for (int i = 0; i < 2 && !error; i++)
        error = attune__file_write(&f[i], "fresh", 5);
    if (interfere)
        interfere();
    if (!error)
        error = attune__file_commit((attune__file *[]){&f[0], &f[1]}, 2);
    for (int i = 0; i < 2; i++)
        attune__file_drop(&f[i]);
    return error;
}

static void put_a_folder_there(void)
{
    unlink("second");
    cr_assert_eq(mkdir("second", 0700), 0);
}

Test(file, all_or_none)
{
    cr_assert_eq(write_two("first", "second", NULL), 0);
    cr_assert(holds("first", "fresh") && holds("second", "fresh"));
    cr_assert_eq(files_here(), 2);
    /* The second cannot have its name: the first, which had, goes back to what it was. */
    cr_assert_eq(write_whole("first", "old"), 0);
    cr_assert_eq(chmod("first", 0600), 0);
    cr_assert_eq(write_two("first", "second", put_a_folder_there), EISDIR);
    cr_assert(holds("first", "old"));
    cr_assert_eq(mode_of("first"), 0600);
    cr_assert_eq(files_here(), 2);
    cr_assert_eq(rmdir("second"), 0);
    cr_assert_eq(unlink("first"), 0);
    cr_assert_eq(write_two("first", "second", put_a_folder_there), EISDIR);
    cr_assert_neq(access("first", F_OK), 0, "what was not there is not left there");
    cr_assert_eq(rmdir("second"), 0);
    cr_assert_eq(write_two("first", "/dev/full", NULL), ENOSPC);
    cr_assert_eq(files_here(), 0);
}

/* A limit on the size of files, as a full disk, at every byte. */
Test(file, a_full_disk_leaves_what_was_there)
{
    char text[64];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    cr_assert_eq(write_whole("there", "old"), 0);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    const rlim_t before = limit.rlim_cur;
    for (rlim_t size = 0; size < sizeof text - 1; size++) {
        limit.rlim_cur = size;
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        const int there = write_whole("there", text), fresh = write_whole("fresh", text);
        limit.rlim_cur = before;
        setrlimit(RLIMIT_FSIZE, &limit);
        cr_assert_eq(there, EFBIG);
        cr_assert_eq(fresh, EFBIG);
        cr_assert(holds("there", "old"));
        cr_assert_eq(files_here(), 1, "at %llu bytes", (unsigned long long)size);
    }
}

#define WRITERS 4
#define ROUNDS  100

static void *write_often(void *user)
{
    const char *text = user;
    for (int i = 0; i < ROUNDS; i++)
        if (write_whole("shared", text))
            return user;
    return NULL;
}

/* Each has a temporary file of its own: the target is always one writer's, whole. */
Test(file, writers_of_one_name)
{
    static char texts[WRITERS][40];
    pthread_t threads[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        memset(texts[i], 'a' + i, 10 + 5 * (size_t)i);
        cr_assert_eq(pthread_create(&threads[i], NULL, write_often, texts[i]), 0);
    }
    for (int i = 0; i < WRITERS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        cr_assert_null(failed);
    }
    bool whole = false;
    for (int i = 0; i < WRITERS; i++)
        whole |= holds("shared", texts[i]);
    cr_assert(whole);
    cr_assert_eq(files_here(), 1);
}

/* A process without standard input has files of number 0. */
Test(file, number_zero_is_a_file)
{
    cr_assert_eq(write_whole("there", "old"), 0);
    attune__file f;
    for (int later = 0; later < 2; later++)
        for (int drop = 0; drop < 2; drop++) {
            if (!later)
                close(0);
            cr_assert_eq(attune__file_find(&f, "there"), 0);
            if (later)
                close(0);
            cr_assert_eq(attune__file_open(&f), 0);
            cr_assert_eq(later ? f.file : f.folder, 0);
            cr_assert_eq(attune__file_write(&f, "new", 3), 0);
            if (!drop)
                cr_assert_eq(attune__file_commit(&(attune__file *){&f}, 1), 0);
            attune__file_drop(&f);
            cr_assert(fcntl(0, F_GETFD) == -1, "it is left open");
            cr_assert(holds("there", "new"));
            cr_assert_eq(files_here(), 1);
            cr_assert_eq(open("/dev/null", O_RDONLY), 0);
        }
    close(0);
    cr_assert_eq(open(".", O_RDONLY), 0);
    const int high = fcntl(0, F_DUPFD, 100);
    close(0);
    cr_assert_eq(attune__file_find_in(&f, high, "in"), 0);
    cr_assert_eq(f.folder, 0);
    attune__file_drop(&f);
    cr_assert(fcntl(0, F_GETFD) == -1);
}

/* Nobody can plant what they cannot name. */
Test(file, temporary_names_are_not_repeated)
{
    attune__file f[64];
    for (int i = 0; i < 64; i++) {
        cr_assert_eq(attune__file_find(&f[i], "target"), 0);
        cr_assert_eq(attune__file_open(&f[i]), 0);
        cr_assert(strlen(f[i].temporary) > 32 && !strstr(f[i].temporary, "target"));
        struct stat about;
        cr_assert(fstat(f[i].file, &about) == 0 && S_ISREG(about.st_mode));
        for (int j = 0; j < i; j++)
            cr_assert_neq(memcmp(f[i].temporary, f[j].temporary, 16), 0);
        cr_assert_neq(memcmp(f[i].temporary, f[i].temporary + 16, 16), 0, "two words of chance");
    }
    for (int i = 0; i < 64; i++)
        attune__file_drop(&f[i]);
    cr_assert_eq(files_here(), 0);
}
