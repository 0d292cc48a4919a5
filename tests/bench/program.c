/* SPDX-License-Identifier: MIT */
/* The program as a person runs it: exit status, words, files. ATTUNE_PROGRAM and ATTUNE_SOURCE come from the build. */
#define _XOPEN_SOURCE 700 /* posix_openpt */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/oracle/array.h"

static char folder[64], output[1 << 16];

static void enter(void)
{
    strcpy(folder, "/tmp/attune-program-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
}

static void leave(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    cr_assert_eq(system(command), 0);
}

TestSuite(program, .init = enter, .fini = leave);

/* Runs the program in a shell; its output, both streams, goes to `output`. Returns its exit status, 128 after a signal.
 */
static int run(const char *arguments)
{
    static char command[8192];
    const char *program = getenv("ATTUNE_PROGRAM");
    cr_assert_not_null(program, "ATTUNE_PROGRAM is not set: run the suite with meson test");
    snprintf(command, sizeof command, "%s %s 2>&1", program, arguments);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    size_t length = fread(output, 1, sizeof output - 1, pipe);
    output[length] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static void expect(const char *arguments, int status, const char *words)
{
    int got = run(arguments);
    cr_expect(got == status, "attune %s exits with %d, expected %d:\n%s", arguments, got, status, output);
    cr_expect(strstr(output, words), "attune %s does not say \"%s\":\n%s", arguments, words, output);
}

/* The same of the standard error alone. */
static void expect_complaint(const char *arguments, int status, const char *words)
{
    char redirected[1024];
    snprintf(redirected, sizeof redirected, "%s 2>err >/dev/null; code=$?; cat err; exit $code", arguments);
    expect(redirected, status, words);
}

Test(program, words_that_are_wrong)
{
    expect("", 0, "usage: attune COMMAND");
    expect("--version", 0, "attune 0.");
    expect("nothing", 2, "no command nothing");
    expect("expain", 2, "did you mean explain");
    expect("compile --arch sm_86 --workload causl -o /nowhere/x", 2, "did you mean causal");
    expect("explain --head-dim 584", 3, "no kernel has wider heads");
    expect("explain --device-profile h200 --dtype f64", 3, "there are f32 f16 bf16");
    expect("explain --mask 'q >= k'", 0, "k is a parameter, i32");
    expect("bench --workload decode --json ''", 2, "--json is empty");
    expect("devices --jsn", 2, "did you mean --json");
    expect("devices extra", 2, "unexpected \"extra\"");
    expect("mask --q-len", 2, "--q-len needs a value");
    expect("mask --q-len=ten", 2, "--q-len is \"ten\", expected a whole number");
    expect("mask --q-len=0", 2, "--q-len is \"0\"");
    expect("mask --block 100", 2, "q_block is 100");
    expect("mask --heads 32,5", 2, "does not divide");
    expect("mask --heads 32 --kv-heads 5", 2, "does not divide");
    expect("mask --heads 32,8 --kv-heads 8", 2, "leave out --kv-heads 8");
    expect("explain --kv-heads 4", 0, "32 heads on 4");
    expect("explain --heads 6 --kv-heads 3", 0, "6 heads on 3");
    expect("explain --kv-heads 0", 2, "--kv-heads is \"0\"");
    expect("explain --list-profiles", 0, "mma_sync, 48.0 GiB\n");
    expect("mask 'q >='", 2, "column");
    expect("mask 'q >= kv & q'", 2, "&&");
    expect("mask 'score > 1'", 2, "score");
    expect("mask causal --capture doc", 2, "expected NAME=VALUE");
    expect("mask causal --capture doc=none.npy", 2, "none.npy");
    expect("mask 'doc[q] == doc[kv]'", 2, "--capture doc=FILE.npy");
    expect("mask 'window(n)'", 2, "--param n=VALUE");
    expect("explain --dtype f8", 2, "--dtype is \"f8\"");
    expect("explain --kv-dtype f8", 2, "--kv-dtype is \"f8\"");
    expect("explain --device-profile h200 --dtype f32 --kv-dtype f16", 0, "cuda_sm90a: it has one dtype");
    expect("explain --device-profile h300", 2, "h200");
    expect("explain --ranks 2", 2, "--link-gbps");
    expect("explain --tflops 2", 2, "--tflops requires --ranks");
    expect("explain --ranks 2 --link-gbps 50 --device-profile h200", 2, "requires --tflops");
    expect("explain --ranks 2 --link-gbps 50 --tflops 1 --direction backward", 2, "forward call alone");
    expect("explain --ranks 2 --link-gbps 0 --tflops 1", 2, "--link-gbps is 0");
    expect("explain --ranks 2 --link-gbps 5 --tflops 1 --layout rings", 2, "zigzag");
    expect("explain --ranks 2 --link-gbps 5 --tflops 1 --mask 'doc[q] == doc[kv]'", 2, "--capture doc=");
    expect("explain --ranks 20 --link-gbps 5 --tflops 1 --mask 'window(900)' --q-len 5000", 0, "times as fast");
    expect("explain --ranks 3 --link-gbps 5 --tflops 1 --device-profile h200 --mask '' --json", 0,
           "\"received_share\"");
    expect("bench --ranks 17", 2, "--ranks is");
    expect("bench --layout cut", 2, "--layout requires --ranks");
    expect("bench --ranks 2 --direction step", 2, "forward and backward alone");
    expect("bench --ranks 2 --masks", 2, "--masks and --ranks exclude each other");
    expect("bench --ranks 2 --device vulkan:0", 2, "ranks are CPU devices");
    expect("bench --ranks 2 --workload serve_tree", 2, "on one device");
    expect("explain --param w=3", 2, "no expression uses that name");
    expect("explain --kernel-options '[1]'", 2, "--kernel-options");
    expect("explain --kernel-options '{\"BLOCK_X\": 1}'", 2, "BLOCK_X");
    expect("explain --kernel-options '{\"num_stages\": 2}'", 2, "num_stages");
    expect("explain --direction sideways", 2, "sideways");
    expect("run", 2, "--q is missing");
    expect("run --q q.npy --k k.npy --v v.npy", 2, "no output: give --out");
    expect("run --q q.npy --k k.npy --v v.npy --out /nowhere/o.npy", 2, "--out: /nowhere/o.npy cannot be written");
    expect("run --q q.npy --k k.npy --v v.npy --out o.npy --block 64", 2, "requires --mask");
    expect("mask causal --param n=3", 2, "no expression uses that name");
    expect("mask causal --plane 1,0", 2, "a batch below 1");
    expect("mask causal --png m.png --pixels 799", 2, "--pixels is \"799\", expected a whole number from 800 to 16384");
    expect("mask causal --svg /nowhere/m.svg", 2, "--svg: /nowhere/m.svg");
    expect("mask causal --svg m.png --png ./m.png", 2, "same file");
    expect("mask causal --png /nowhere/m.png", 2, "--png: /nowhere/m.png");
    expect("explain --scale 0", 2, "other than 0");
    expect("explain --dtype ''", 2, "--dtype is empty");
    expect("explain --device cpu --device-profile h200", 2, "exclude each other");
    expect("explain --kernel-options '{\"x\": 1}'", 2, "docs/planning.md");
    expect("bench --fail-on-slower", 2, "requires --compare");
    expect("bench --noise 3", 2, "requires --compare");
    expect("bench --workload causal --doc-lengths none", 2, "none");
    expect("bench --compare none.json", 2, "--compare: unable to open none.json");
    expect("bench --json /nowhere/b.json", 2, "--json: /nowhere/b.json");
    expect("compile --arch sm_86 --workload causal -o /nowhere/x", 2, "-o: /nowhere/x");
    expect("compile --arch sm_86 --workload causal --direction up -o x", 2, "forward, backward or step");
    expect("check --case nowhere", 2, "nowhere");
    expect("check --device gpu", 2, "device id \"gpu\" is invalid");
    expect("check --device vulkan:99", 3, "vulkan");
    expect("bench --workload nothing", 2, "nothing");
    expect("report", 2, "no file of attune bench --json");
    expect("report a.json", 2, "give -o FILE.html, or a second file");
    expect("report none.json -o x.html", 2, "none.json");
    expect("report a.json -o /nowhere/x.html", 2, "-o: /nowhere/x.html");
    expect("report a.json b.json --noise 101", 2, "--noise is 101");
    expect("report a.json -o x.html --fail-on-slower", 2, "--fail-on-slower requires a second file");
    expect("bench --workload ,", 2, "--workload is \",\", expected names");
    expect("bench --q-len 64 --workload causal", 2, "--workload excludes --q-len");
    expect("bench --heads 2 --file x.json", 2, "--file excludes --q-len");
    expect("bench --q-len 0", 2, "--q-len is \"0\"");
    expect("bench --q-len 64..128", 2, "--q-len is \"64..128\"");
    expect("bench --q-len '64..128*1'", 2, "sweeps such as 1024..65536*2");
    expect("bench --q-len 128..64+8", 2, "--q-len is");
    expect("bench --q-len 1..1000+1", 2, "more than 64 numbers");
    expect("bench --q-len 1..40+1 --heads 1..40+1", 2, "1600 combinations, the limit is 1024");
    expect("bench --head-dim ,", 2, "--head-dim is \",\"");
    expect("bench --heads 3 --kv-heads 2", 2, "kv_heads: must divide heads");
    expect("bench --batch 100000000", 2, "batch");
    expect("bench --param n=3", 2, "--param n: no expression uses that name");
    expect("bench --mask 'x[q] == 1' --capture x=nothing", 2, "no such generator");
    expect("bench --mask 'x[q] == 1' --capture x=none.npy", 2, "none.npy");
    expect("bench --mask 'x[q] == 1' --capture x=document:a", 2, "a length behind the colon");
    expect("bench --mask 'x[q] == 1' --capture x", 2, "NAME=GENERATOR");
    expect("bench --mask 'q > n' --param n=1 --param n=2", 2, "given twice");
    for (const char *const *c = (const char *const[]){"devices", "expr", "mask", "explain", "run", "check", "bench",
                                                      "compile", "report", NULL};
         *c; c++) {
        char help[32];
        snprintf(help, sizeof help, "%s --help", *c);
        expect(help, 0, "usage: attune");
    }
}

Test(program, looks_around)
{
    expect("devices", 0, "cpu ");
    cr_expect(strstr(output, "iB of L2 per core"), "%s", output);
    cr_expect(strstr(output, "vulkan") && strstr(output, "cuda") && strstr(output, "opencl"));
    cr_assert_eq(run("devices --json"), 0);
    json_error_t error;
    json_t *root = json_loads(output, 0, &error);
    cr_assert(json_is_array(root) && json_array_size(root) >= 4, "%s", error.text);
    cr_assert_str_eq(json_string_value(json_object_get(json_array_get(root, 0), "id")), "cpu");
    json_decref(root);

    expect("expr --list", 0, "window(n)");
    expect("expr 'kv <= q && true'", 0, "hash");
    expect("expr 'document(doc) && causal'", 0, "capture   doc: i32[1]");
    expect("expr --score 'softcap(c) + bias[q - kv, h]'", 0, "capture   bias: f32[2]");
    cr_expect(strstr(output, "parameter c: f32"));
    expect("expr --score 'relative_bias(bias, n) * heat'", 0, "parameter n: i32");
    cr_expect(strstr(output, "parameter heat: f32") && strstr(output, "capture   bias: f32[2]"));
    expect("expr --score 'bias[anchor[q] + offset]'", 0, "capture   anchor: i32[1]");
    expect("expr 'ids[q] > 0.5' --declare 'ids:bf16[1]'", 0, "bf16[1]");
    expect("expr --ir causal", 0, "le");
    expect("expr --c 'causal || kv < n'", 0, "const");
    expect("expr ''", 2, "empty");

    expect("mask causal --q-len 512 --exact --lists", 0, "density 50.0977%");
    cr_expect(strstr(output, "full 3: 0 1 2") && strstr(output, "partial 3: 3"));
    expect("mask 'window(64)' --q-len 300 --png m.png --no-picture", 0, "built in");
    FILE *png = fopen("m.png", "rb");
    unsigned char head[24];
    cr_assert(png && fread(head, 1, 24, png) == 24 && !memcmp(head, "\x89PNG\r\n\x1a\n", 8));
    fclose(png);
    /* Three blocks a side are still a picture to look at: width and height, big endian. */
    int size[2];
    for (int i = 0; i < 2; i++)
        size[i] = head[16 + 4 * i] << 24 | head[17 + 4 * i] << 16 | head[18 + 4 * i] << 8 | head[19 + 4 * i];
    cr_expect(size[1] == 1024 && size[0] > 800 && size[0] <= 1024, "%d x %d", size[0], size[1]);

    expect("explain --list-profiles", 0, "NVIDIA RTX A6000");
    cr_assert_eq(run("explain --list-profiles --json"), 0);
    root = json_loads(output, 0, &error);
    cr_assert(json_is_array(root) && json_array_size(root) >= 16, "%s", error.text);
    json_decref(root);
    expect("explain --device-profile a6000 --head-dim 192,128 --dtype bf16 --direction backward --q-len 4096 --kv-len "
           "4096 "
           "--heads 32,8",
           0, "101376");
    cr_assert_eq(run("explain --device-profile v3d --dtype f32 --json"), 0);
    root = json_loads(output, 0, &error);
    cr_assert(json_is_object(root), "%s", error.text);
    json_decref(root);
    expect("explain", 0, "cpu");
    expect("explain --score 'bias[q - kv]' --declare 'bias:f16[1]'", 0, "score expression");
}

static int count_of(const char *text, const char *word)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, word)); at += strlen(word))
        count++;
    return count;
}

/* Blocks as they are, axes in tokens, a legend, and which plane it is: in a terminal, as SVG and as PNG. */
Test(program, draws_masks)
{
    expect("mask causal --q-len 512 --block 128", 0,
           "          0                       256                    512 keys\n"
           "          \u250c");
    cr_expect(strstr(output, "        0 \u2502\u2592\u2592") && strstr(output, "      512 \u2502\u2588\u2588"), "%s",
              output);
    cr_expect(strstr(output, "\u2588 full  \u2592 partial  empty; blocks of 128 x 128\n"), "%s", output);
    cr_expect(strstr(output, "batch 0 of 1, head 0 of 1; 512 queries x 512 keys"), "%s", output);
    cr_expect(!strchr(output, '\033'), "no colour in a pipe");
    /* Half-blocks: the last of nine rows of blocks is the upper half of a line. */
    expect("mask 'kv < 768 && q < 144' --q-len 768 --kv-len 1536 --block 16", 0,
           " \u2502\u2580\u2580\u2580\u2580\u2580\u2580");
    /* A tick for a length that is no multiple of a block, whose last cells are smaller. */
    expect("mask 'kv < 40' --q-len 40 --kv-len 40 --block 32 --no-picture --svg m.svg --batch 3 --heads 4 --plane 2,1",
           0, "built in");
    FILE *file = fopen("m.svg", "r");
    cr_assert_not_null(file);
    output[fread(output, 1, sizeof output - 1, file)] = '\0';
    fclose(file);
    cr_expect(strstr(output, "<rect x=\"0\" y=\"32\" width=\"40\" height=\"8\" fill=\"#183060\"/>"), "%s", output);
    cr_expect(strstr(output, ">batch 2 of 3, head 1 of 4; 40 queries x 40 keys<") && strstr(output, ">kv &lt; 40<"));
    cr_expect(strstr(output, ">density about 100 %, of blocks 100 % (all planes)<"), "%s", output);
    static const char *const words[] = {">queries<", ">keys<", ">full<", ">partial<", ">empty<", ">blocks of 32 x 32<"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        cr_expect_eq(count_of(output, words[i]), 1, "%s:\n%s", words[i], output);
    cr_expect_eq(count_of(output, ">40</text>"), 2, "both axes end at the length:\n%s", output);
    /* A row of four blocks on the diagonal, three full runs below it, and the legend. */
    expect("mask causal --q-len 512 --no-picture --svg m.svg --png m.png --pixels 900", 0, "built in");
    cr_assert_eq(system("python3 -c \"import xml.dom.minidom as x; x.parse('m.svg')\""), 0);
    file = fopen("m.svg", "r");
    output[fread(output, 1, sizeof output - 1, file)] = '\0';
    fclose(file);
    cr_expect_eq(count_of(output, "fill=\"#c8d8f0\"/>"), 4, "%s", output);
    cr_expect_eq(count_of(output, "fill=\"#183060\"/>"), 3, "%s", output);
}

static void save(const char *path, attune_dtype dtype, uint32_t rank, const int64_t *size, uint64_t seed)
{
    array a;
    failure why;
    random_state r = {seed};
    cr_assert(array_create(&a, dtype, rank, size, &why));
    if (dtype == ATTUNE_I32)
        for (int64_t i = 0; i < array_count(&a); i++)
            array_set(&a, i, (double)(i / 30));
    else
        array_fill_normal(&a, &r, 1);
    FILE *stream = fopen(path, "wb");
    cr_assert(stream && npy_write(stream, &a));
    cr_assert_eq(fclose(stream), 0);
    array_free(&a);
}

static double largest_difference(const char *x, const char *y)
{
    array a, b;
    failure why;
    cr_assert(npy_read(x, &a, &why), "%s", why.message);
    cr_assert(npy_read(y, &b, &why), "%s", why.message);
    cr_assert_eq(array_count(&a), array_count(&b));
    double largest = 0;
    for (int64_t i = 0; i < array_count(&a); i++)
        largest = fmax(largest, fabs(array_get(&a, i) - array_get(&b, i)));
    array_free(&a);
    array_free(&b);
    return largest;
}

Test(program, runs_on_files)
{
    const int64_t q[4] = {1, 4, 100, 32}, k[4] = {1, 2, 100, 32}, doc[1] = {100}, other[4] = {1, 2, 100, 24};
    save("q.npy", ATTUNE_F32, 4, q, 1);
    save("k.npy", ATTUNE_F32, 4, k, 2);
    save("v.npy", ATTUNE_F32, 4, k, 3);
    save("doc.npy", ATTUNE_I32, 1, doc, 4);
    save("bad.npy", ATTUNE_F32, 4, other, 5);
    save("flat.npy", ATTUNE_F32, 1, doc, 6);
#define INPUTS                                                                                                         \
    "run --q q.npy --k k.npy --v v.npy --mask 'q >= kv && doc[q] == doc[kv]' --capture doc=doc.npy "                   \
    "--score 'cap * tanh(score / cap)' --param cap=50.0 "
    expect(INPUTS "--out o.npy --lse lse.npy --row-max m.npy", 0, "");
    expect(INPUTS "--dtype f64 --out o64.npy --lse lse64.npy", 0, "");
    cr_assert_lt(largest_difference("o.npy", "o64.npy"), 1e-5);
    cr_assert_lt(largest_difference("lse.npy", "lse64.npy"), 1e-5);
    expect(INPUTS "--dtype bf16 --out o16.npy", 0, "");
    cr_assert_lt(largest_difference("o16.npy", "o64.npy"), 0.1);
    cr_assert_gt(largest_difference("o16.npy", "o64.npy"), 0);
    expect(INPUTS "--kv-dtype f16 --out kv16.npy", 0, "");
    cr_assert_lt(largest_difference("kv16.npy", "o64.npy"), 0.01);
    cr_assert_gt(largest_difference("kv16.npy", "o.npy"), 0);
    expect(INPUTS "--o-dtype bf16 --out out16.npy", 0, "");
    cr_assert_gt(largest_difference("out16.npy", "o.npy"), largest_difference("kv16.npy", "o.npy"));
    save("k16.npy", ATTUNE_F16, 4, k, 2);
    expect("run --q q.npy --k k16.npy --v v.npy --out o2.npy", 2, "k and v are f16 and f32");
    expect(INPUTS "--kernel-options '{\"BLOCK_M\": 32, \"BLOCK_N\": 64}' --out tile.npy", 0, "");
    cr_assert_lt(largest_difference("tile.npy", "o64.npy"), 1e-5);

    /* A run that fails leaves what is there. */
    expect("run --q q.npy --k bad.npy --v v.npy --out o.npy", 2, "head_dim");
    cr_assert_lt(largest_difference("o.npy", "o64.npy"), 1e-5);
    expect("run --q q.npy --k flat.npy --v v.npy --out o.npy", 2, "rank 1, expected 4");
    expect("run --q q.npy --k doc.npy --v v.npy --out o.npy", 2, "rank 1");
    expect("run --q q.npy --k k.npy --v v.npy --mask 'doc[q] == 0' --out new.npy", 2, "doc");
    cr_assert_neq(access("new.npy", F_OK), 0);
    expect("run --q q.npy --k k.npy --v v.npy --out /no/such/o.npy", 2, "/no/such/o.npy");
    expect("run --q q.npy --k k.npy --v v.npy --out new.npy --lse /no/such/lse.npy", 2, "/no/such/lse.npy");
    cr_assert_neq(access("new.npy", F_OK), 0);
    cr_assert_neq(system("ls | grep -E 'aside|partial'"), 0, "a temporary file is left");
    expect("run --q q.npy --k k.npy --v v.npy --out new.npy --lse new.npy", 2, "same file");
    expect("run --q q.npy --k k.npy --v v.npy --out new.npy --scale 0", 2, "other than 0");
    /* A device is written to, not replaced by a file. */
    struct stat about;
    expect("run --q q.npy --k k.npy --v v.npy --out /dev/null", 0, "");
    cr_assert(stat("/dev/null", &about) == 0 && S_ISCHR(about.st_mode));
    expect("run --q q.npy --k k.npy --v v.npy --device cuda --out o.npy", 3, "cuda");
}

static void save_integers(const char *path, attune_dtype dtype, uint32_t rank, const int64_t *size,
                          const int64_t *values)
{
    array a;
    failure why;
    cr_assert(array_create(&a, dtype, rank, size, &why));
    for (int64_t i = 0; i < array_count(&a); i++)
        array_set(&a, i, (double)values[i]);
    FILE *stream = fopen(path, "wb");
    cr_assert(stream && npy_write(stream, &a));
    cr_assert_eq(fclose(stream), 0);
    array_free(&a);
}

/* A cache and a batch: what a dense call computes, what the oracle does, and what is wrong with a batch. */
Test(program, serves_from_files)
{
    const int64_t q[4] = {3, 4, 40, 32}, k[4] = {3, 2, 40, 32}, whole[] = {40, 40, 40}, three[1] = {3}, four[1] = {4};
    save("q.npy", ATTUNE_F32, 4, q, 1);
    save("k.npy", ATTUNE_F32, 4, k, 2);
    save("v.npy", ATTUNE_F32, 4, k, 3);
    save("sinks.npy", ATTUNE_F32, 1, four, 4);
    save_integers("whole.npy", ATTUNE_I64, 1, three, whole);
#define DENSE " --q q.npy --k k.npy --v v.npy --mask 'q >= kv' --sinks sinks.npy "
    expect("run" DENSE "--out o.npy --lse l.npy", 0, "");
    expect("run" DENSE "--kv-len whole.npy --out cached.npy --lse cached_l.npy", 0, "");
    cr_assert_lt(largest_difference("o.npy", "cached.npy"), 1e-5);
    cr_assert_lt(largest_difference("l.npy", "cached_l.npy"), 1e-5);
    expect("check" DENSE "--grad --dtype f32", 0, "dv");
    expect("check" DENSE "--kv-len whole.npy", 0, "3 problems: 3 good, 0 failed");

    /* Packed rows over pages of 8: a chunk, a prompt, rows without a key; and a page that is not there. */
    const int64_t rows[3] = {14, 4, 32}, pool[4] = {6, 2, 8, 32}, starts[] = {0, 3, 10, 12}, lengths[] = {20, 7, 0};
    const int64_t table_size[2] = {3, 3}, table[] = {4, -1, 2, 1, 77, -5, 0, 0, 0}, words[2] = {14, 1};
    const int64_t list_size[1] = {5}, list[] = {4, -1, 2, 1, 3}, list_starts[] = {0, 3, 4, 5}, firsts[] = {2, 1, 0};
    const int64_t bits[14] = {1, 3, 5, 1, 3, 7, 15, 31, 63, 127, 1, 3, 0, 0}, two[] = {2}, one[1] = {1};
    save("q.npy", ATTUNE_F32, 3, rows, 1);
    save("k.npy", ATTUNE_F32, 4, pool, 2);
    save("v.npy", ATTUNE_F32, 4, pool, 3);
    save_integers("starts.npy", ATTUNE_I64, 1, four, starts);
    save_integers("lengths.npy", ATTUNE_I32, 1, three, lengths);
    save_integers("table.npy", ATTUNE_I32, 2, table_size, table);
    save_integers("list.npy", ATTUNE_I64, 1, list_size, list);
    save_integers("list_starts.npy", ATTUNE_I32, 1, four, list_starts);
    save_integers("firsts.npy", ATTUNE_I32, 1, three, firsts);
    save_integers("bits.npy", ATTUNE_I64, 2, words, bits);
    save_integers("two.npy", ATTUNE_U8, 1, one, two);
#define BATCH " --q q.npy --k k.npy --v v.npy --kv-len lengths.npy --q-start starts.npy "
    expect("check" BATCH "--pages table.npy --mask 'q >= kv && row % 3 != kv' --score 'score + 0.1 * row'", 0,
           "3 good, 0 failed");
    expect("check" BATCH "--pages list.npy --pages-start list_starts.npy --kv-first firsts.npy --tree bits.npy "
           "--sinks sinks.npy --mask 'q >= kv' --dtype f32 --kv-dtype bf16",
           0, "1 good, 0 failed");
    expect("check --q q.npy --k k.npy --head-dim-v 24 --kv-len lengths.npy --q-start starts.npy --pages table.npy "
           "--count two.npy --dtype f32",
           0, "1 good, 0 failed");
    expect("run" BATCH "--pages table.npy --mask 'q >= kv' --out o.npy", 0, "");
    expect("run" BATCH "--pages list.npy --pages-start list_starts.npy --mask 'q >= kv' --out list_o.npy", 0, "");
    cr_assert_eq(largest_difference("o.npy", "list_o.npy"), 0);

    save_integers("long.npy", ATTUNE_I32, 1, three, (int64_t[]){20, 25, 0});
    save_integers("falling.npy", ATTUNE_I32, 1, four, (int64_t[]){0, 3, 2, 12});
    save_integers("past.npy", ATTUNE_I32, 1, four, (int64_t[]){0, 3, 10, 15});
    static const struct {
        const char *arguments, *words;
    } wrong[] = {
        {"run --q q.npy --k k.npy --v v.npy --kv-len long.npy --q-start starts.npy --pages table.npy --out x.npy",
         "sequence 1 has 25 keys, expected 0 to the 24"},
        {"run --q q.npy --k k.npy --v v.npy --kv-len lengths.npy --q-start falling.npy --pages table.npy --out x.npy",
         "sequence 1 has the rows 3 to 2"},
        {"run --q q.npy --k k.npy --v v.npy --kv-len lengths.npy --q-start past.npy --pages table.npy --out x.npy",
         "at most the 14 of q"},
        {"run" BATCH "--pages list.npy --out x.npy", "the block table has rank 1, expected 2"},
        {"run" BATCH "--pages q.npy --out x.npy", "expected integers"},
        {"run" BATCH "--pages-start list_starts.npy --out x.npy", "need the block table"},
        {"run --q q.npy --k k.npy --v v.npy --kv-len lengths.npy --pages table.npy --out x.npy",
         "need the start of each sequence"},
        {"run --q q.npy --k k.npy --v v.npy --pages table.npy --out x.npy", "rank 3, expected 4"},
        {"run --q k.npy --k k.npy --v v.npy --pages table.npy --out x.npy", "--pages requires --kv-len"},
        {"run" BATCH "--head-dim-v 8 --out x.npy", "--head-dim-v is for calls without --v"},
        {"run" BATCH "--mask 'q >= kv' --block 64 --out x.npy", "--block"},
        {"check" BATCH "--pages table.npy --grad", "--grad"},
        {"check --kv-len lengths.npy", "--q is missing"},
        {"check" BATCH "--case nowhere", "exclude each other"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        expect(wrong[i].arguments, 2, wrong[i].words);
    cr_assert_neq(access("x.npy", F_OK), 0);
}

/* Files that a command writes: none is another, each keeps its permissions, and all are there or none. */
Test(program, writes_files_together)
{
    const int64_t size[4] = {1, 1, 20, 16};
    struct stat about;
    save("q.npy", ATTUNE_F32, 4, size, 1);
#define SELF "run --q q.npy --k q.npy --v q.npy "
    expect(SELF "--out a.npy --lse ./a.npy", 2, "same file");
    cr_assert_neq(access("a.npy", F_OK), 0);
    expect(SELF "--out a.npy --lse lse.npy", 0, "");
    cr_assert_eq(system("ln a.npy hard.npy && ln -s a.npy soft.npy"), 0);
    expect(SELF "--out a.npy --lse hard.npy", 2, "same file");
    expect(SELF "--out soft.npy --row-max a.npy", 2, "same file");
    expect(SELF "--out b.npy --lse /dev/full", 1, "--lse: /dev/full could not be written: No space");
    cr_assert_neq(access("b.npy", F_OK), 0);
    expect(SELF "--out /dev/full", 1, "No space");
    cr_assert_eq(chmod("lse.npy", 0600), 0);
    expect(SELF "--out b.npy --lse lse.npy", 0, "");
    cr_assert(stat("lse.npy", &about) == 0 && (about.st_mode & 0777) == 0600);
    expect(SELF "--out /dev/stdout --lse c.npy > piped.npy", 0, "");
    cr_assert_lt(largest_difference("piped.npy", "b.npy"), 1e-30);
    /* Names that once were temporary are a stranger's. */
    cr_assert_eq(system("echo mine > j.json.tmp && echo mine > m.png.tmp"), 0);
    expect("bench --workload causal --scale 0.0001 --repetitions 1 --min-time 0 --warmup-time 0 --no-peers --no-peaks "
           "--json j.json",
           0, "causal");
    cr_assert_eq(system("grep -q mine j.json.tmp && grep -q benchmarks j.json"), 0);
    expect("mask causal --no-picture --png /dev/full", 1, "No space");
    expect("mask causal --no-picture --png .", 2, "is a folder");
    cr_assert_eq(system("mkdir locked && ln -s ../j.json.tmp locked/m.png"), 0);
    expect("mask causal --no-picture --png locked/m.png", 0, "");
    cr_assert_eq(system("grep -q mine j.json.tmp"), 0, "a link is replaced, not followed");
    /* Likewise captures. */
#define CAPTURES                                                                                                       \
    "bench --workload alibi --scale 0.0001 --repetitions 1 --min-time 0 --warmup-time 0 --no-peers --no-peaks "
    cr_assert_eq(system("mkdir made && ln -s ../j.json.tmp made/alibi.slopes.npy"), 0);
    expect(CAPTURES "--write-captures made", 0, "alibi");
    cr_assert_eq(system("grep -q mine j.json.tmp && grep -q NUMPY made/alibi.slopes.npy"), 0);
    expect(CAPTURES "--write-captures none", 2, "--write-captures: none cannot be written to: No such file");
    expect(CAPTURES "--write-captures q.npy", 2, "--write-captures: q.npy cannot be written to: Not a directory");
    expect("bench --workload serve_tree --write-captures made", 2, "write no captures");
    cr_assert_neq(system("find . | grep -E 'aside|partial|attune-tmp'"), 0, "a temporary file is left");
}

/* Every command says when its words did not arrive. */
Test(program, a_full_standard_output)
{
    const char *const commands[] = {
        "--version",
        "--help",
        "devices",
        "devices --json",
        "expr causal",
        "expr --list",
        "mask causal --q-len 64",
        "explain",
        "explain --list-profiles",
        "bench --list",
        "bench --workload causal --scale 0.0001 --repetitions 1 --min-time 0 --warmup-time 0 --no-peers --no-peaks "
        "--format csv",
        "bench --workload causal --scale 0.0001 --repetitions 1 --min-time 0 --warmup-time 0 --no-peers --no-peaks "
        "--json",
    };
    char arguments[512];
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        snprintf(arguments, sizeof arguments, "%s 2>err >/dev/full; code=$?; cat err; exit $code", commands[i]);
        expect(arguments, 1, "standard output could not be written");
    }
    expect("run --help 2>&1 >&-; true", 0, "standard output could not be written");
}

Test(program, checks_cases)
{
    char command[4096];
    const char *source = getenv("ATTUNE_SOURCE");
    snprintf(command, sizeof command, "check --case %s/tests/goldens/window --dtype f32", source);
    expect(command, 0, "o file");
    cr_expect(strstr(output, "1 problems: 1 good, 0 failed"), "%s", output);
    snprintf(command, sizeof command, "check --case %s/tests/goldens/window --dtype f32 --grad", source);
    expect(command, 0, "dv file");
    /* A check that cannot fail is none: the same case with another answer. */
    snprintf(command, sizeof command, "cp -r '%s/tests/goldens/window' bad && cp bad/v.npy bad/o.npy", source);
    cr_assert_eq(system(command), 0);
    snprintf(command, sizeof command, "check --case %s/tests/goldens/window --dtype f32 --kv-dtype bf16 --grad",
             source);
    expect(command, 0, "dq");
    cr_expect_null(strstr(output, "o file"), "the file's answer is for f32 keys:\n%s", output);
    snprintf(command, sizeof command, "check --case %s/tests/goldens/window --dtype f64 --o-dtype f16", source);
    expect(command, 2, "float64 plans have one dtype");
    expect("check --case bad --dtype f32", 1, "FAIL");
    expect_complaint("check --case bad --dtype f32", 1, "1 of 1 problems failed");
    cr_assert_eq(
        system("echo '[{\"name\": \"hot\", \"heads\": 2, \"q_len\": 40, \"head_dim\": 16, \"mask\": \"q >= kv\","
               "\"score\": \"score * heat[h]\", \"captures\": {\"heat\": {\"generator\": \"normal\","
               "\"size\": [2], \"spread\": 1}}}]' > hot.json"),
        0);
    expect("check --file hot.json --dtype f16 --grad", 0, "dheat");
    /* Gradients that cancel to 0: of what a row's scores have in common, and of a row of one key. Roundings of scores
     * that are large: in dV they are in P alone. */
    cr_assert_eq(system("echo '[{\"name\": \"shift\", \"heads\": 2, \"q_len\": 20, \"head_dim\": 16,"
                        "\"score\": \"score * 0.7 + w[b, h]\", \"captures\": {\"w\": {\"generator\": \"normal\","
                        "\"size\": [1, 2], \"spread\": 1}}},"
                        "{\"name\": \"one_key\", \"heads\": 2, \"q_len\": 20, \"kv_len\": 1, \"head_dim\": 16},"
                        "{\"name\": \"large\", \"heads\": 2, \"q_len\": 20, \"head_dim\": 16,"
                        "\"score\": \"score + 30000.0\"}]' > cancel.json"),
                 0);
    expect("check --file cancel.json --grad", 0, "dw");
    expect("check --file nowhere.json", 2, "nowhere.json");
    expect("check --file hot.json --case bad", 2, "exclude each other");
    static const struct {
        const char *json, *words;
    } hostile[] = {
        {"[]", "not a JSON object"},
        {"{", "line 1"},
        {"{\"mask\": 3}", "\"mask\""},
        {"{\"mask\": \"q >=\"}", "column"},
        {"{\"captures\": [\"../q\"]}", "no name"},
        {"{\"captures\": \"q\"}", "no array"},
        {"{\"captures\": [\"nothing\"]}", "nothing.npy"},
        {"{\"grad_captures\": [\"bias\"]}", "expected one of"},
        {"{\"grad_captures\": 1}", "no array"},
        {"{\"scale\": -1}", "positive"},
        {"{\"scale\": 1, \"scale\": 2}", "duplicate"},
        {"{\"maks\": \"\"}", "unknown key \"maks\""},
    };
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        FILE *file = fopen("bad/case.json", "w");
        cr_assert_not_null(file);
        fputs(hostile[i].json, file);
        fclose(file);
        expect("check --case bad", 2, hostile[i].words);
    }
}

/* The automatic size of a row does not follow from which others are run. */
Test(program, bench_rows_stand_alone)
{
    static const char *const chosen[] = {"causal", "causal,decode"};
    char shape[2][64] = {"", ""};
    for (int i = 0; i < 2; i++) {
        char arguments[256];
        snprintf(arguments, sizeof arguments,
                 "bench --workload %s --dtype f32 --no-check --no-peaks --no-peers --repetitions 1 --warmup 0 "
                 "--warmup-time 0 --min-time 0 --timeout 0.001 --wide",
                 chosen[i]);
        cr_assert_eq(run(arguments), 0, "%s", output);
        cr_expect(strstr(output, "mask ms"), "%s", output);
        const char *row = strstr(output, "\ncausal ");
        cr_assert(row && sscanf(row, " causal cpu f32 %63s", shape[i]) == 1, "%s", output);
    }
    cr_expect_str_eq(shape[0], shape[1]);
    /* Nor from the other devices and types: a slow one does not shrink the others' rows. */
    expect("bench --workload causal --dtype f32,f16 --no-check --no-peaks --no-peers --repetitions 1 --warmup 0 "
           "--warmup-time 0 --min-time 0 --timeout 0.001 --wide",
           0, "causal");
    const char *row = strstr(output, "\ncausal ");
    cr_assert(row && sscanf(row, " causal cpu f32 %63s", shape[1]) == 1, "%s", output);
    cr_expect_str_eq(shape[0], shape[1]);
    expect("bench --list --wide --format csv", 2, "--wide");
}

/* Options define workloads: a row for each combination, whose names tell the expressions apart. */
Test(program, bench_shapes)
{
#define SHAPES "bench --no-check --no-peaks --no-peers --repetitions 1 --warmup 0 --min-time 0 --format csv "
    static const char *const rows[] = {
        "causal/cpu/f32/b1h4:2q64k64d32:16,",   "causal/cpu/f16/b1h4:2q64k64d32:16,",
        "causal/cpu/f32/b1h4:2q128k128d32:16,", "window-n.softcap-c/cpu/f32/b1h4:2q256k256d32:16,",
        "dense/cpu/f16/b1h4:2q128k128d32:16,",  "causal-2/cpu/f32/b1h4:2q64k64d32:16,",
    };
    expect(SHAPES
           "--q-len '64..256*2' --heads 4 --kv-heads 2 --head-dim 32 --head-dim-v 16 --dtype f32,f16 --mask causal "
           "--mask '' --mask 'window(n)' --mask '(causal)' --score '' --score 'softcap(c)' --param n=16 --param c=50.0",
           0, "name,workload");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_expect(strstr(output, rows[i]), "no row %s:\n%s", rows[i], output);
    int lines = 0;
    for (const char *at = output; *at; at++)
        lines += *at == '\n';
    cr_expect_eq(lines, 1 + 3 * 2 * 4 * 2);
    expect(SHAPES "--q-len 1 --kv-len 100,200 --batch 2 --head-dim 32..64+16", 0, "/b2h16:16q1k200d64,");
    expect(SHAPES "--q-len 64 --heads 2 --mask 'doc[q] == doc[kv]' --capture doc=document:20", 0, "doc-q-doc-kv/");
    const int64_t size[1] = {64};
    save("doc.npy", ATTUNE_I32, 1, size, 4);
    expect(SHAPES "--q-len 64 --heads 2 --mask 'doc[q] == doc[kv]' --capture doc=doc.npy", 0, "doc-q-doc-kv/");
}

Test(program, benches)
{
    expect("bench --list", 0, "causal");
    expect("bench --workload causal,decode --scale 0.0001 --repetitions 3 --min-time 0.001 --no-peers --json base.json",
           0, "causal");
    json_error_t error;
    json_t *root = json_load_file("base.json", 0, &error);
    cr_assert(json_is_object(json_object_get(root, "context")) &&
                  json_array_size(json_object_get(root, "benchmarks")) >= 2,
              "%s", error.text);
    json_decref(root);
    expect("bench --workload causal,decode --repetitions 3 --min-time 0.001 --no-peers --compare base.json", 0,
           "causal");
    expect(
        "bench --workload dflash,eagle3_ttt --segments --direction step --scale 0.00001 --repetitions 1 --min-time 0 "
        "--no-peers --format csv",
        0, "/segments/step");
    expect("bench --workload causal,decode --scale 0.0001 --dtype f32 --kv-dtype f16 --repetitions 1 --min-time 0 "
           "--no-peers --no-peaks --format csv",
           0, "/f32:f16:f32/");
    expect("bench --workload serve_gemma3,serve_tree --scale 0.00001 --repetitions 1 --min-time 0 --no-peaks --json "
           "serving.json",
           0, "tok/s");
    root = json_load_file("serving.json", 0, &error);
    int rates = 0;
    size_t index;
    json_t *entry;
    json_array_foreach(json_object_get(root, "benchmarks"), index, entry)
    {
        rates += json_real_value(json_object_get(entry, "tokens_per_second")) > 0 &&
                 json_real_value(json_object_get(entry, "bytes_per_second")) > 0;
    }
    cr_assert_eq(rates, 2, "%s", error.text);
    json_decref(root);
    expect("bench --workload serve_tree --direction step", 2, "serve_tree");
    expect("bench --workload serve_gema3", 2, "did you mean serve_gemma3");
    expect("bench --workload causal --kv-dtype half", 2,
           "--kv-dtype is \"half\", expected f32 f16 bf16 f64, or for caches");
    expect("bench --workload serve_tree --scale 0.00001 --dtype f16 --kv-dtype q8_0 --repetitions 1 --min-time 0 "
           "--no-peaks --format csv",
           0, "/f16:q8_0:f16/");
    expect("bench --workload causal --scale 0.0001 --kv-dtype q8_0 --repetitions 1 --min-time 0 --no-peers --no-peaks",
           1, "quantised keys and values are read from a cache only");
    expect("bench --workload causal --scale 0.0001 --repetitions 1 --min-time 0 --no-peers --kernel-options "
           "'{\"num_warps\": 4}'",
           1, "num_warps");
}

/* Whatever is wrong with an input is said on the standard error, also where the output goes to a file; and at once. */
Test(program, failures_are_said)
{
#define QUICK " --repetitions 1 --min-time 0 --warmup-time 0 --no-peers --no-peaks"
    static const struct {
        const char *workload, *words;
        int status;
    } wrong[] = {
        {"\"q_len\": 16, \"head_dim\": 16, \"kv_dtype\": \"f64\"", "kv_dtype: must be one of f32 f16 bf16", 2},
        {"\"q_len\": 16, \"head_dim\": 12", "head_dim is 12", 3},
        {"\"q_len\": 16, \"head_dim\": 16, \"mask\": \"doc[q] == doc[kv]\"", "unknown name 'doc'", 1},
        {"\"q_len\": 2147483647, \"head_dim\": 16", "2^28 rows", 2},
        {"\"q_len\": 1, \"kv_len\": 2147483647, \"head_dim\": 16, \"mask\": \"kv < 9\"", "2^28 rows", 2},
        {"\"batch\": 65536, \"heads\": 32768, \"kv_heads\": 1, \"q_len\": 1, \"kv_len\": 16, \"head_dim\": 16",
         "2^28 rows", 2},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        FILE *file = fopen("w.json", "w");
        cr_assert_not_null(file);
        fprintf(file, "[{\"name\": \"a\", %s}]", wrong[i].workload);
        fclose(file);
        expect_complaint("bench --file w.json" QUICK, wrong[i].status, wrong[i].words);
        expect_complaint("bench --file w.json" QUICK " --json", wrong[i].status, wrong[i].words);
        expect_complaint("check --file w.json", wrong[i].status, wrong[i].words);
    }
    cr_assert_eq(system("echo '[{\"name\": \"a\", \"q_len\": 1048576, \"head_dim\": 16}]' > w.json"), 0);
    expect("check --file w.json", 2, "the limit of check's plain loops");
    cr_assert_eq(system("mkdir case && echo '{}' > case/case.json"), 0);
    expect_complaint("check --case case", 2, "case/q.npy");
    /* A comparison of nothing is no success. */
    expect("bench --workload causal --scale 0.0001" QUICK " --json base.json", 0, "causal");
    expect_complaint("bench --workload softcap" QUICK " --compare base.json --fail-on-slower", 1,
                     "nothing was compared");
    expect_complaint("bench --workload softcap" QUICK " --compare base.json", 1, "nothing was compared");
}

/* A page of one file and of two, compared without a device. */
Test(program, reports)
{
    char command[512];
    expect("bench --workload causal,softcap --scale 0.0001" QUICK " --json a.json", 0, "causal");
    expect("bench --workload alibi --scale 0.0001" QUICK " --json b.json", 0, "alibi");
    expect("report a.json -o a.html", 0, "");
    cr_assert_eq(system("head -c 15 a.html | grep -q DOCTYPE && grep -q softcap a.html"), 0);
    expect_complaint("report a.json b.json -o b.html", 1, "no row in common");
    cr_assert_eq(access("b.html", F_OK), 0, "the page shows both");
    cr_assert_eq(system("sed 's/\"real_time\": [0-9.e-]*/\"real_time\": 1e6/' a.json > slow.json"), 0);
    expect("report a.json a.json --fail-on-slower", 0, "2 same, 0 faster, 0 slower, 0 unknown");
    expect("report a.json b.json", 1, "only in the baseline");
    /* One sample of each decides nothing; a file with many does. */
    expect("report a.json slow.json --fail-on-slower", 0, "2 unknown");
    cr_expect(strstr(output, "???? (too few samples to decide: --repetitions 9)"), "%s", output);
    snprintf(command, sizeof command, "report '%s/bench/results/h200-2026-11-22.json' -o /dev/full",
             getenv("ATTUNE_SOURCE"));
    expect(command, 1, "No space");
    expect("report a.json -o .", 2, "is a folder");
}

/* Runs the program with a terminal as its standard error, and returns what that shows. */
static const char *run_on_terminal(const char *arguments)
{
    char command[1024];
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    if (terminal < 0 || grantpt(terminal) || unlockpt(terminal))
        cr_skip_test("there are no pseudo-terminals: /dev/pts is not mounted");
    const int shown = open(ptsname(terminal), O_RDWR | O_NOCTTY); /* what is written stays until it is read */
    snprintf(command, sizeof command, "'%s' %s 2>'%s' >/dev/null", getenv("ATTUNE_PROGRAM"), arguments,
             ptsname(terminal));
    cr_expect_eq(system(command), 0, "%s", command);
    const ssize_t length = read(terminal, output, sizeof output - 1);
    output[length > 0 ? length : 0] = '\0';
    close(shown);
    close(terminal);
    return output;
}

/* Long work says what it does on a terminal, and removes it; in a pipe it says nothing. */
Test(program, shows_progress)
{
    static const struct {
        const char *arguments, *words;
    } work[] = {
        {"bench --q-len 64 --heads 2" QUICK, "[0/1] dense cpu f32"},
        {"check --file w.json --dtype f32", "[1/2] b cpu f32; 1 good, 0 failed"},
    };
    cr_assert_eq(system("echo '[{\"name\": \"a\", \"q_len\": 16, \"head_dim\": 16},"
                        "{\"name\": \"b\", \"q_len\": 16, \"head_dim\": 16}]' > w.json"),
                 0);
    for (size_t i = 0; i < sizeof work / sizeof work[0]; i++) {
        run_on_terminal(work[i].arguments);
        const size_t length = strlen(output);
        cr_expect(strstr(output, work[i].words), "%s", output);
        cr_expect(length > 4 && !strcmp(output + length - 4, "\r\033[K"), "the line is removed");
        cr_expect_eq(run(work[i].arguments), 0);
        cr_expect(!strchr(output, '\r') && !strchr(output, '\033'), "%s", output);
    }
    /* A total at the end. */
    cr_expect(strstr(output, "2 problems: 2 good, 0 failed, 0 could not run, 0 unsupported; 0 s\n"), "%s", output);
}

/* OpenBLAS starts threads when it is loaded: only its peers load it. */
Test(program, links_no_blas)
{
    char command[4096];
    snprintf(command, sizeof command, "ldd '%s' | grep -i blas", getenv("ATTUNE_PROGRAM"));
    cr_assert_neq(system(command), 0);
    void *blas = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    expect("bench --workload causal --scale 0.0001 --repetitions 1 --min-time 0 --warmup-time 0 --no-peaks --peers", 0,
           blas ? "peer: OpenBLAS sgemm" : "libopenblas.so.0 cannot be opened");
    cr_expect(strstr(output, "naive loop"), "%s", output);
}

/* Messages that need neither a compiler nor a GPU. */
Test(program, compile_says_what_is_missing)
{
    expect("compile --arch sm_86 --workload causal", 2, "-o PACK");
    expect("compile --workload causal -o p.pack", 2, "--arch");
    expect("compile --arch sm_75 --workload causal -o p.pack", 2, "sm_86");
    expect("compile --arch sm_86 -o p.pack", 2, "--workload");
    expect("compile --arch sm_86 --workload nothing -o p.pack", 2, "nothing");
    expect("compile --arch sm_86 --workload causal --head-dim 7 -o p.pack", 2, "--head-dim");
    /* A device that compiles nothing ahead makes no pack. */
    expect("compile --device-profile cpu --workload causal -o p.pack", 3, "unsupported");
    cr_expect_neq(access("p.pack", F_OK), 0);
    expect("check --pack nothing.pack", 1, "nothing.pack");
}

/* A pack of a step holds forward's kernel and backward's three. */
/* Forward has the decode kernel as well, and either direction what masks that follow a tensor are updated with. */
Test(program, compiles_a_step)
{
    if (!dlopen("libnvrtc.so.13", RTLD_NOW) && !dlopen("libnvrtc.so.12", RTLD_NOW))
        cr_skip("libnvrtc.so.13 and libnvrtc.so.12 cannot be opened");
    const char *const compile =
        "compile --device-profile a6000 --workload causal --head-dim 64 --direction %s -o step.pack";
    const struct {
        const char *direction, *kernels;
    } passes[] = {{"forward", " 3 kernels"}, {"backward", " 5 kernels"}, {"step", " 7 kernels"}};
    for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++) {
        char arguments[160];
        snprintf(arguments, sizeof arguments, compile, passes[i].direction);
        expect(arguments, 0, passes[i].kernels);
    }
    const char *const mixed =
        "compile --device-profile a6000 --workload decode --dtype f32 --kv-dtype f16 --head-dim 64 -o mixed.pack";
    expect(mixed, 0, " 1 kernels");
    expect(mixed, 0, "forward  f32,f16,f32");
}
