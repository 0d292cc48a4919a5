/* SPDX-License-Identifier: MIT */
/* The program's commands: exit status, words, reports. */
#define _XOPEN_SOURCE 700 /* posix_openpt */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/program.h"

TestSuite(program, .init = program_enter, .fini = program_leave);

Test(program, words_that_are_wrong)
{
    program_expect("", 0, "usage: attune COMMAND");
    program_expect("--version", 0, "attune 0.");
    program_expect("nothing", 2, "no command nothing");
    program_expect("foo", 2, "no command foo; attune --help");
    program_expect("expain", 2, "did you mean explain");
    program_expect("compile --arch sm_86 --workload causl -o /nowhere/x", 2, "did you mean causal");
    program_expect("explain --head-dim 584", 3, "no kernel has wider heads");
    program_expect("explain --device-profile h200 --dtype f64", 3, "there are f32 f16 bf16");
    program_expect("explain --mask 'q >= k'", 0, "k is a parameter, i32");
    program_expect("bench --workload decode --json ''", 2, "--json is empty");
    program_expect("devices --jsn", 2, "did you mean --json");
    /* Not parameters, though they may be: no parameter alone is a mask. */
    program_expect("mask 'causl && q - kv < 5'", 2, "did you mean causal?");
    program_expect("mask 'size + q'", 2, "a mask must be bool");
    program_expect("mask 'q - kv < size'", 2, "--param size=VALUE");
    program_expect("devices extra", 2, "unexpected \"extra\"");
    program_expect("mask --q-len", 2, "--q-len needs a value");
    program_expect("mask --q-len=ten", 2, "--q-len is \"ten\", expected a whole number");
    program_expect("mask --q-len=0", 2, "--q-len is \"0\"");
    program_expect("mask --block 100", 2, "q_block is 100");
    program_expect("mask --heads 32,5", 2, "does not divide");
    program_expect("mask --heads 32 --kv-heads 5", 2, "does not divide");
    program_expect("mask --heads 32,8 --kv-heads 8", 2, "leave out --kv-heads 8");
    program_expect("explain --kv-heads 4", 0, "32 heads on 4");
    program_expect("explain --heads 6 --kv-heads 3", 0, "6 heads on 3");
    program_expect("explain --kv-heads 0", 2, "--kv-heads is \"0\"");
    program_expect("explain --list-profiles", 0, "mma_sync, 48.0 GiB\n");
    program_expect("mask 'q >='", 2, "column");
    program_expect("mask 'q >= kv & q'", 2, "&&");
    program_expect("mask 'score > 1'", 2, "score");
    program_expect("mask causal --capture doc", 2, "expected NAME=VALUE");
    program_expect("mask causal --capture doc=none.npy", 2, "none.npy");
    program_expect("mask 'doc[q] == doc[kv]'", 2, "--capture doc=FILE.npy");
    program_expect("mask 'window(n)'", 2, "--param n=VALUE");
    program_expect("explain --dtype f8", 2, "--dtype is \"f8\"");
    program_expect("explain --kv-dtype f8", 2, "--kv-dtype is \"f8\"");
    program_expect("explain --device-profile h200 --dtype f32 --kv-dtype f16", 0, "cuda_sm90a: it has one dtype");
    program_expect("explain --device-profile h300", 2, "h200");
    program_expect("explain --ranks 2", 2, "--link-gbps");
    program_expect("explain --tflops 2", 2, "--tflops requires --ranks");
    program_expect("explain --ranks 2 --link-gbps 50 --device-profile h200", 2, "requires --tflops");
    program_expect("explain --ranks 2 --link-gbps 50 --tflops 1 --direction backward", 2, "forward call alone");
    program_expect("explain --ranks 2 --link-gbps 0 --tflops 1", 2, "--link-gbps is 0");
    program_expect("explain --ranks 2 --link-gbps 5 --tflops 1 --layout rings", 2, "zigzag");
    program_expect("explain --ranks 2 --link-gbps 5 --tflops 1 --mask 'doc[q] == doc[kv]'", 2, "--capture doc=");
    program_expect("explain --ranks 20 --link-gbps 5 --tflops 1 --mask 'window(900)' --q-len 5000", 0, "times as fast");
    program_expect("explain --ranks 3 --link-gbps 5 --tflops 1 --device-profile h200 --mask '' --json", 0,
                   "\"received_share\"");
    program_expect("bench --ranks 17", 2, "--ranks is");
    program_expect("bench --layout cut", 2, "--layout requires --ranks");
    program_expect("bench --ranks 2 --direction step", 2, "forward, backward and decode alone");
    program_expect("bench --ranks 2 --masks", 2, "--masks and --ranks exclude each other");
    program_expect("bench --ranks 3 --device vulkan:0,cpu", 2, "one for each of 3 ranks");
    program_expect("bench --ranks 2 --device all", 2, "name a backend");
    program_expect("bench --ranks 2 --transport mail", 2, "expected peers, nccl or host");
    program_expect("bench --transport nccl", 2, "--transport requires --ranks");
    program_expect("bench --ranks 2 --overlap maybe", 2, "expected auto, on, off, heads or read");
    program_expect("bench --overlap off", 2, "--overlap requires --ranks");
    program_expect("bench --send", 2, "--send requires --ranks");
    program_expect("bench --ranks 2 --send", 2, "give --direction decode, or leave out --send");
    program_expect("bench --ranks 2 --send --direction backward", 2, "--send is of queries and results in decode");
    program_expect("bench --ranks 2 --direction decode --overlap off", 2, "in decode keys stay");
    program_expect("bench --direction decode", 2, "requires --ranks");
    program_expect("bench --ranks 2 --direction decode --layout cut", 2, "deals its keys in turn");
    program_expect("bench --ranks 2 --direction decode --q-len 1 --kv-len 900 --heads 2 --no-peaks --repetitions 2", 0,
                   "1 ok");
    program_expect("bench --ranks 2 --direction decode --q-len 9 --mask 'q > kv' --no-peaks", 3, "write it as a score");
    program_expect("bench --ranks 2 --transport peers --q-len 90 --no-peaks", 3, "between CUDA devices alone");
    program_expect("bench --ranks 2 --workload serve_tree", 2, "on one device");
    program_expect("explain --param w=3", 2, "no expression uses that name");
    program_expect("explain --kernel-options '[1]'", 2, "--kernel-options");
    program_expect("explain --kernel-options '{\"BLOCK_X\": 1}'", 2, "BLOCK_X");
    program_expect("explain --kernel-options '{\"num_stages\": 2}'", 2, "num_stages");
    program_expect("explain --direction sideways", 2, "sideways");
    program_expect("run", 2, "--q is missing");
    program_expect("run --q q.npy --k k.npy --v v.npy", 2, "no output: give --out");
    program_expect("run --q q.npy --k k.npy --v v.npy --out /nowhere/o.npy", 2,
                   "--out: /nowhere/o.npy cannot be written");
    program_expect("run --q q.npy --k k.npy --v v.npy --out o.npy --block 64", 2, "requires --mask");
    program_expect("mask causal --param n=3", 2, "no expression uses that name");
    program_expect("expr causal --param n=3", 2, "--param n: no expression uses that name");
    program_expect("expr --score 'score + 1' --declare 'doc:i32[1]'", 2, "--declare doc: no expression uses that name");
    program_expect("expr 'q > n' --param n=3", 0, "parameter n: i32");
    program_expect("mask causal --plane 1,0", 2, "a batch below 1");
    program_expect("mask causal --png m.png --pixels 799", 2,
                   "--pixels is \"799\", expected a whole number from 800 to 16384");
    program_expect("mask causal --svg /nowhere/m.svg", 2, "--svg: /nowhere/m.svg");
    program_expect("mask causal --svg m.png --png ./m.png", 2, "same file");
    program_expect("mask causal --pixels 900", 2, "--pixels requires --png or --svg");
    program_expect("mask causal --no-picture --plane 0,0", 2, "--plane with --no-picture requires --png or --svg");
    program_expect("expr --ir --c causal", 2, "exclude each other");
    program_expect("expr --list causal", 2, "--list is of the presets");
    program_expect("explain --declare foo:f32", 2, "--declare foo: no expression uses that name");
    program_expect("explain --mask '' --block 64", 2, "--block requires --mask");
    program_expect("mask causal --png /nowhere/m.png", 2, "--png: /nowhere/m.png");
    program_expect("explain --scale 0", 2, "other than 0");
    program_expect("explain --dtype ''", 2, "--dtype is empty");
    program_expect("explain --device cpu --device-profile h200", 2, "exclude each other");
    program_expect("explain --kernel-options '{\"x\": 1}'", 2, "docs/planning.md");
    program_expect("bench --fail-on-slower", 2, "requires --compare");
    program_expect("bench --noise 3", 2, "requires --compare");
    program_expect("bench --workload causal --doc-lengths none", 2, "--doc-lengths: none: ");
    program_expect("bench --masks --dtype f16", 2, "--dtype has no row with --masks alone");
    program_expect("bench --masks --direction step", 2, "--direction has no row with --masks alone");
    program_expect("bench --masks --device vulkan", 2, "--device has no row with --masks alone");
    program_expect("bench --masks --device cpu", 2, "--device has no row with --masks alone");
    program_expect("bench --masks --scale 0.5", 2, "--scale has no row with --masks alone");
    program_expect("bench --masks --no-check", 2, "--no-check has no row with --masks alone");
    program_expect("bench --compare none.json", 2, "--compare: unable to open none.json");
    program_expect("bench --json /nowhere/b.json", 2, "--json: /nowhere/b.json");
    program_expect("compile --arch sm_86 --workload causal -o /nowhere/x", 2, "-o: /nowhere/x");
    program_expect("compile --arch sm_86 --workload causal --direction up -o x", 2, "forward, backward or step");
    program_expect("check --case nowhere", 2, "nowhere");
    program_expect("check --device gpu", 2, "device id \"gpu\" is invalid");
    program_expect("check --device vulkan:99", 3, "vulkan");
    program_expect("bench --workload nothing", 2, "nothing");
    program_expect("report", 2, "no file of attune bench --json");
    program_expect("report a.json", 2, "give -o FILE.html, or a second file");
    program_expect("report none.json -o x.html", 2, "none.json");
    program_expect("report a.json -o /nowhere/x.html", 2, "-o: /nowhere/x.html");
    program_expect("report a.json b.json --noise 101", 2, "--noise is 101");
    program_expect("report a.json -o x.html --fail-on-slower", 2, "--fail-on-slower requires a second file");
    program_expect("report a.json -o x.html --noise 3", 2, "--noise requires a second file");
    program_expect("bench --workload ,", 2, "--workload is \",\", expected names");
    program_expect("bench --q-len 64 --workload causal", 2, "--workload excludes --q-len");
    program_expect("bench --heads 2 --file x.json", 2, "--file excludes --q-len");
    program_expect("bench --q-len 0", 2, "--q-len is \"0\"");
    program_expect("bench --q-len 64..128", 2, "--q-len is \"64..128\"");
    program_expect("bench --q-len '64..128*1'", 2, "sweeps such as 1024..65536*2");
    program_expect("bench --q-len 128..64+8", 2, "--q-len is");
    program_expect("bench --q-len 1..1000+1", 2, "more than 64 numbers");
    program_expect("bench --q-len 1..40+1 --heads 1..40+1", 2, "1600 combinations, the limit is 1024");
    program_expect("bench --head-dim ,", 2, "--head-dim is \",\"");
    program_expect("bench --heads 3 --kv-heads 2", 2, "kv_heads: is 2, must divide heads, which is 3");
    program_expect("bench --batch 100000000", 2, "batch");
    program_expect("bench --param n=3", 2, "--param n: no expression uses that name");
    program_expect("bench --mask 'q > n'", 2, "--param n=VALUE");
    program_expect("bench --mask 'x[q] == 1'", 2, "--capture x=GENERATOR");
    program_expect("bench --mask 'causl && q - kv < 5'", 2, "did you mean causal?");
    program_expect("bench --mask 'q > n' --param n=x", 2, "--param n is \"x\", expected a number");
    program_expect("mask 'q > n' --param n=x", 2, "--param n is \"x\", expected a number");
    program_expect("bench --mask 'x[q] == 1' --capture x=nothing", 2, "no such generator, \"nothing\"");
    program_expect("bench --mask 'x[q] == 1' --capture x=none.npy", 2, "none.npy");
    program_expect("bench --mask 'x[q] == 1' --capture x=document:a", 2, "a length behind the colon");
    program_expect("bench --mask 'x[q] == 1' --capture x", 2, "NAME=GENERATOR");
    program_expect("bench --mask 'q > n' --param n=1 --param n=2", 2, "given twice");
    program_expect("compile --arch sm_86 --workload serve_one_1k -o x.pack", 2,
                   "--workload serve_one_1k: batches over a cache cannot be compiled ahead of time");
    program_expect("compile --arch sm_86 --workload serving -o x.pack", 2, "batches over a cache cannot be compiled");
    program_expect("bench --workload mask_causal", 2, "whose building attune bench --masks times");
    program_expect("compile --arch sm_86 --workload causal --head-dim 64:abc -o x.pack", 2,
                   "--head-dim is \"64:abc\", expected one number or two with a colon, from 8 to 256");
    program_expect("explain --head-dim 64:32", 2, "two with a comma");
    /* AddressSanitizer ends a program that asks for so much, unless it is told not to. */
    char options[512];
    const char *before = getenv("ASAN_OPTIONS");
    snprintf(options, sizeof options, "%s:allocator_may_return_null=1", before ? before : "");
    setenv("ASAN_OPTIONS", options, 1);
    program_expect("explain --device-profile h200 --ranks 2 --link-gbps 10 --tflops 10 --q-len 2147483647 --mask ''", 1,
                   "--ranks: no memory for a list of 281474976710656 blocks");
    program_expect("mask 'b + h < q' --batch 2147483647 --heads 2147483647 --no-picture", 1, "a smaller batch");
    program_expect("expr 'rwo(q)'", 2, "known are the variables b, h, q, kv, h_kv, q_len, kv_len, row;");
    program_expect("expr 'doc[q] == 1' --declare 'doc:i32[1]' --declare 'doc:i32[1]'", 2,
                   "--declare doc:i32[1]: the name is given twice");
    program_expect("bench --help", 0, "exit with 1 if a row is SLOWER or LOST");
    /* An option has one value, unless it repeats. */
    program_expect("run --mask a --mask b", 2, "--mask is given twice, as \"a\" and as \"b\": expected one of them");
    program_expect("mask causal --q-len 64 --q-len=65", 2, "--q-len is given twice, as \"64\" and as \"65\"");
    program_expect("run --out a.npy --out a.npy", 2, "--out is given twice");
    program_expect("compile --head-dim 64 --head-dim 128", 2,
                   "--head-dim is given twice, as \"64\" and as \"128\": expected one list with commas");
    program_expect("bench --scale 0.1 --scale 0.2", 2, "--scale is given twice");
    program_expect("bench --q-len 1 --q-len 2", 2, "expected one list with commas");
    program_expect("expr 'q > m + n' --param m=1 --param n=2", 0, "parameter n");
    program_expect("devices --json --json", 0, "cpu");
    for (const char *const *c = (const char *const[]){"devices", "expr", "mask", "explain", "run", "check", "bench",
                                                      "compile", "report", NULL};
         *c; c++) {
        char help[32];
        snprintf(help, sizeof help, "%s --help", *c);
        program_expect(help, 0, "usage: attune");
        for (const char *line = program_output; *line; line += strcspn(line, "\n"), line += *line != '\0')
            cr_expect_leq(strcspn(line, "\n"), 110, "%.*s", (int)strcspn(line, "\n"), line);
    }
}

Test(program, looks_around)
{
    program_expect("devices", 0, "cpu ");
    cr_expect(strstr(program_output, "iB of L2 per core"), "%s", program_output);
    cr_expect(strstr(program_output, "vulkan") && strstr(program_output, "cuda") && strstr(program_output, "opencl"));
    cr_assert_eq(program_run("devices --json"), 0);
    json_error_t error;
    json_t *root = json_loads(program_output, 0, &error);
    cr_assert(json_is_array(root) && json_array_size(root) >= 4, "%s", error.text);
    cr_assert_str_eq(json_string_value(json_object_get(json_array_get(root, 0), "id")), "cpu");
    json_decref(root);

    program_expect("expr --list", 0, "window(n)");
    program_expect("expr 'kv <= q && true'", 0, "hash");
    program_expect("expr 'document(doc) && causal'", 0, "capture   doc: i32[1]");
    program_expect("expr --score 'softcap(c) + bias[q - kv, h]'", 0, "capture   bias: f32[2]");
    cr_expect(strstr(program_output, "parameter c: f32"));
    program_expect("expr --score 'relative_bias(bias, n) * heat'", 0, "parameter n: i32");
    cr_expect(strstr(program_output, "parameter heat: f32") && strstr(program_output, "capture   bias: f32[2]"));
    program_expect("expr --score 'bias[anchor[q] + offset]'", 0, "capture   anchor: i32[1]");
    program_expect("expr 'ids[q] > 0.5' --declare 'ids:bf16[1]'", 0, "bf16[1]");
    program_expect("expr --ir causal", 0, "le");
    program_expect("expr --c 'causal || kv < n'", 0, "const");
    program_expect("expr ''", 2, "empty");

    program_expect("mask causal --q-len 512 --exact --lists", 0, "density 50.0977%");
    cr_expect(strstr(program_output, "full 3: 0 1 2") && strstr(program_output, "partial 3: 3"));
    program_expect("mask 'window(64)' --q-len 300 --png m.png --no-picture", 0, "built in");
    FILE *png = fopen("m.png", "rb");
    unsigned char head[24];
    cr_assert(png && fread(head, 1, 24, png) == 24 && !memcmp(head, "\x89PNG\r\n\x1a\n", 8));
    fclose(png);
    /* Three blocks a side are still a picture to look at: width and height, big endian. */
    int size[2];
    for (int i = 0; i < 2; i++)
        size[i] = head[16 + 4 * i] << 24 | head[17 + 4 * i] << 16 | head[18 + 4 * i] << 8 | head[19 + 4 * i];
    cr_expect(size[1] == 1024 && size[0] > 800 && size[0] <= 1024, "%d x %d", size[0], size[1]);

    program_expect("explain --list-profiles", 0, "NVIDIA RTX A6000");
    cr_assert_eq(program_run("explain --list-profiles --json"), 0);
    root = json_loads(program_output, 0, &error);
    cr_assert(json_is_array(root) && json_array_size(root) >= 16, "%s", error.text);
    json_decref(root);
    program_expect(
        "explain --device-profile a6000 --head-dim 192,128 --dtype bf16 --direction backward --q-len 4096 --kv-len "
        "4096 "
        "--heads 32,8",
        0, "101376");
    cr_assert_eq(program_run("explain --device-profile v3d --dtype f32 --json"), 0);
    root = json_loads(program_output, 0, &error);
    cr_assert(json_is_object(root), "%s", error.text);
    json_decref(root);
    program_expect("explain", 0, "cpu");
    program_expect("explain --score 'bias[q - kv]' --declare 'bias:f16[1]'", 0, "score expression");
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
    program_expect("mask causal --q-len 512 --block 128", 0,
                   "          0                       256                    512 keys\n"
                   "          \u250c");
    cr_expect(strstr(program_output, "        0 \u2502\u2592\u2592") &&
                  strstr(program_output, "      512 \u2502\u2588\u2588"),
              "%s", program_output);
    cr_expect(strstr(program_output, "\u2588 full  \u2592 partial  empty; blocks of 128 x 128\n"), "%s",
              program_output);
    cr_expect(strstr(program_output, "batch 0 of 1, head 0 of 1; 512 queries x 512 keys"), "%s", program_output);
    cr_expect(!strchr(program_output, '\033'), "no colour in a pipe");
    /* Half-blocks: the last of nine rows of blocks is the upper half of a line. */
    program_expect("mask 'kv < 768 && q < 144' --q-len 768 --kv-len 1536 --block 16", 0,
                   " \u2502\u2580\u2580\u2580\u2580\u2580\u2580");
    /* A tick for a length that is no multiple of a block, whose last cells are smaller. */
    program_expect(
        "mask 'kv < 40' --q-len 40 --kv-len 40 --block 32 --no-picture --svg m.svg --batch 3 --heads 4 --plane 2,1", 0,
        "built in");
    FILE *file = fopen("m.svg", "r");
    cr_assert_not_null(file);
    program_output[fread(program_output, 1, sizeof program_output - 1, file)] = '\0';
    fclose(file);
    cr_expect(strstr(program_output, "<rect x=\"0\" y=\"32\" width=\"40\" height=\"8\" fill=\"#183060\"/>"), "%s",
              program_output);
    cr_expect(strstr(program_output, ">batch 2 of 3, head 1 of 4; 40 queries x 40 keys<") &&
              strstr(program_output, ">kv &lt; 40<"));
    cr_expect(strstr(program_output, ">density about 100 %, of blocks 100 % (all planes)<"), "%s", program_output);
    static const char *const words[] = {">queries<", ">keys<", ">full<", ">partial<", ">empty<", ">blocks of 32 x 32<"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        cr_expect_eq(count_of(program_output, words[i]), 1, "%s:\n%s", words[i], program_output);
    cr_expect_eq(count_of(program_output, ">40</text>"), 2, "both axes end at the length:\n%s", program_output);
    /* A row of four blocks on the diagonal, three full runs below it, and the legend. */
    program_expect("mask causal --q-len 512 --no-picture --svg m.svg --png m.png --pixels 900", 0, "built in");
    cr_assert_eq(system("python3 -c \"import xml.dom.minidom as x; x.parse('m.svg')\""), 0);
    file = fopen("m.svg", "r");
    program_output[fread(program_output, 1, sizeof program_output - 1, file)] = '\0';
    fclose(file);
    cr_expect_eq(count_of(program_output, "fill=\"#c8d8f0\"/>"), 4, "%s", program_output);
    cr_expect_eq(count_of(program_output, "fill=\"#183060\"/>"), 3, "%s", program_output);
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
        program_expect(arguments, 1, "standard output could not be written");
    }
    program_expect("run --help 2>&1 >&-; true", 0, "standard output could not be written");
}

Test(program, checks_cases)
{
    char command[4096];
    const char *source = getenv("ATTUNE_SOURCE");
    snprintf(command, sizeof command, "check --case %s/tests/goldens/window --dtype f32", source);
    program_expect(command, 0, "o file");
    cr_expect(strstr(program_output, "1 problems: 1 good, 0 failed"), "%s", program_output);
    snprintf(command, sizeof command, "check --case %s/tests/goldens/window --dtype f32 --grad", source);
    program_expect(command, 0, "dv file");
    /* A check that cannot fail is none: the same case with another answer. */
    snprintf(command, sizeof command, "cp -r '%s/tests/goldens/window' bad && cp bad/v.npy bad/o.npy", source);
    cr_assert_eq(system(command), 0);
    snprintf(command, sizeof command, "check --case %s/tests/goldens/window --dtype f32 --kv-dtype bf16 --grad",
             source);
    program_expect(command, 0, "dq");
    cr_expect_null(strstr(program_output, "o file"), "the file's answer is for f32 keys:\n%s", program_output);
    snprintf(command, sizeof command, "check --case %s/tests/goldens/window --dtype f64 --o-dtype f16", source);
    program_expect(command, 2, "float64 plans have one dtype");
    program_expect("check --case bad --dtype f32", 1, "FAIL");
    program_expect_complaint("check --case bad --dtype f32", 1, "1 of 1 problems failed");
    cr_assert_eq(
        system("echo '[{\"name\": \"hot\", \"heads\": 2, \"q_len\": 40, \"head_dim\": 16, \"mask\": \"q >= kv\","
               "\"score\": \"score * heat[h]\", \"captures\": {\"heat\": {\"generator\": \"normal\","
               "\"size\": [2], \"spread\": 1}}}]' > hot.json"),
        0);
    program_expect("check --file hot.json --dtype f16 --grad", 0, "dheat");
    /* Gradients that cancel to 0: of what a row's scores have in common, and of a row of one key. Roundings of scores
     * that are large: in dV they are in P alone. */
    cr_assert_eq(system("echo '[{\"name\": \"shift\", \"heads\": 2, \"q_len\": 20, \"head_dim\": 16,"
                        "\"score\": \"score * 0.7 + w[b, h]\", \"captures\": {\"w\": {\"generator\": \"normal\","
                        "\"size\": [1, 2], \"spread\": 1}}},"
                        "{\"name\": \"one_key\", \"heads\": 2, \"q_len\": 20, \"kv_len\": 1, \"head_dim\": 16},"
                        "{\"name\": \"large\", \"heads\": 2, \"q_len\": 20, \"head_dim\": 16,"
                        "\"score\": \"score + 30000.0\"}]' > cancel.json"),
                 0);
    program_expect("check --file cancel.json --grad", 0, "dw");
    program_expect("check --file nowhere.json", 2, "nowhere.json");
    program_expect("check --file hot.json --case bad", 2, "exclude each other");
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
        program_expect("check --case bad", 2, hostile[i].words);
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
        cr_assert_eq(program_run(arguments), 0, "%s", program_output);
        cr_expect(strstr(program_output, "mask ms"), "%s", program_output);
        const char *row = strstr(program_output, "\ncausal ");
        cr_assert(row && sscanf(row, " causal cpu f32 %63s", shape[i]) == 1, "%s", program_output);
    }
    cr_expect_str_eq(shape[0], shape[1]);
    /* Nor from the other devices and types: a slow one does not shrink the others' rows. */
    program_expect(
        "bench --workload causal --dtype f32,f16 --no-check --no-peaks --no-peers --repetitions 1 --warmup 0 "
        "--warmup-time 0 --min-time 0 --timeout 0.001 --wide",
        0, "causal");
    const char *row = strstr(program_output, "\ncausal ");
    cr_assert(row && sscanf(row, " causal cpu f32 %63s", shape[1]) == 1, "%s", program_output);
    cr_expect_str_eq(shape[0], shape[1]);
    program_expect("bench --list --wide --format csv", 2, "--wide");
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
    program_expect(
        SHAPES
        "--q-len '64..256*2' --heads 4 --kv-heads 2 --head-dim 32 --head-dim-v 16 --dtype f32,f16 --mask causal "
        "--mask '' --mask 'window(n)' --mask '(causal)' --score '' --score 'softcap(c)' --param n=16 --param c=50.0",
        0, "name,workload");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_expect(strstr(program_output, rows[i]), "no row %s:\n%s", rows[i], program_output);
    int lines = 0;
    for (const char *at = program_output; *at; at++)
        lines += *at == '\n';
    cr_expect_eq(lines, 1 + 3 * 2 * 4 * 2);
    program_expect(SHAPES "--q-len 1 --kv-len 100,200 --batch 2 --head-dim 32..64+16", 0, "/b2h16:16q1k200d64,");
    program_expect(SHAPES "--q-len 64 --heads 2 --mask 'doc[q] == doc[kv]' --capture doc=document:20", 0,
                   "doc-q-doc-kv/");
    const int64_t size[1] = {64};
    program_save("doc.npy", ATTUNE_I32, 1, size, 4);
    program_expect(SHAPES "--q-len 64 --heads 2 --mask 'doc[q] == doc[kv]' --capture doc=doc.npy", 0, "doc-q-doc-kv/");
}

#define QUICK " --repetitions 1 --min-time 0 --warmup-time 0 --no-peers --no-peaks"
Test(program, benches)
{
    program_expect("bench --list", 0, "causal");
    program_expect(
        "bench --workload causal,decode --scale 0.0001 --repetitions 3 --min-time 0.001 --no-peers --json base.json", 0,
        "causal");
    json_error_t error;
    json_t *root = json_load_file("base.json", 0, &error);
    cr_assert(json_is_object(json_object_get(root, "context")) &&
                  json_array_size(json_object_get(root, "benchmarks")) >= 2,
              "%s", error.text);
    json_decref(root);
    program_expect("bench --workload causal,decode --repetitions 3 --min-time 0.001 --no-peers --compare base.json", 0,
                   "causal");
    program_expect(
        "bench --workload dflash,eagle3_ttt --segments --direction step --scale 0.00001 --repetitions 1 --min-time 0 "
        "--no-peers --format csv",
        0, "/segments/step");
    /* The identities of its gradients hold to what f16 rounds. */
    program_expect(
        "bench --workload causal --scale 0.0001 --kv-dtype f16 --direction backward --repetitions 1 --min-time 0 "
        "--no-peaks --no-peers",
        0, "1 ok");
    program_expect(
        "bench --workload causal,decode --scale 0.0001 --dtype f32 --kv-dtype f16 --repetitions 1 --min-time 0 "
        "--no-peers --no-peaks --format csv",
        0, "/f32:f16:f32/");
    program_expect(
        "bench --workload serve_gemma3,serve_tree --scale 0.00001 --repetitions 1 --min-time 0 --no-peaks --json "
        "serving.json",
        0, "tok/s");
    program_expect("bench --workload decode,serve_gemma3 --scale 0.00001 --layers 8 --repetitions 2 --min-time 0.001 "
                   "--no-peers --no-peaks --format csv",
                   0, "CLOCK_MONOTONIC around 8 calls in a row");
    program_expect("bench --workload decode --layers 0", 2, "--layers");
    program_expect("bench --workload decode --layers 2 --direction backward", 2, "--layers is of a forward pass");
    program_expect("bench --workload decode --graph", 2, "--graph requires --layers");
    program_expect("bench --workload decode --scale 0.0001 --layers 2 --graph --no-peers --no-peaks", 3,
                   "cpu has no CUDA graphs: --graph is for CUDA devices");
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
    program_expect("bench --workload serve_tree --direction step", 2, "serve_tree");
    program_expect("bench --workload serve_gema3", 2, "did you mean serve_gemma3");
    program_expect("bench --workload causal --kv-dtype half", 2,
                   "--kv-dtype is \"half\", expected f32 f16 bf16 f64, or for caches");
    program_expect(
        "bench --workload serve_tree --scale 0.00001 --dtype f16 --kv-dtype q8_0 --repetitions 1 --min-time 0 "
        "--no-peaks --format csv",
        0, "/f16:q8_0:f16/");
    program_expect("bench --workload causal --kv-dtype q8_0", 2,
                   "--kv-dtype is q8_0, which keys and values of a cache alone have");
    program_expect("bench --workload causal --dtype f64 --o-dtype bf16", 2,
                   "--o-dtype is bf16, but the type of q is f64: float64 plans have one dtype: leave out --o-dtype");
    program_expect("bench --workload serve_tree --dtype f64 --kv-dtype q8_0", 2, "leave out --kv-dtype");
    program_expect("bench --workload causal --dtype f32,f64 --kv-dtype f64", 2,
                   "--kv-dtype is f64, but the type of q is f32");
    program_expect("explain --dtype f64 --o-dtype bf16", 2, "leave out --o-dtype");
    program_expect("run --q q.npy --k k.npy --v v.npy --out o.npy --dtype f64 --kv-dtype f16", 2,
                   "leave out --kv-dtype");
    program_expect("compile --arch sm_86 --workload causal --dtype f16 --o-dtype f64 -o x.pack", 2,
                   "leave out --o-dtype");
    program_expect("bench --workload causal --scale 0.0001 --repetitions 1 --min-time 0 --no-peers --kernel-options "
                   "'{\"num_warps\": 4}'",
                   2, "attune: --kernel-options: num_warps is given");
    /* Nor begins a row that can only fail; where another one can have the options, it runs. */
    program_expect("bench --mask 'window(' --q-len 37", 2, "attune: mask of window: ");
    program_expect("bench --q-len 37 --kernel-options '{\"BLOCK_M\": 63}'", 2, "--kernel-options: BLOCK_M is 63");
    program_expect("bench --workload serving --kernel-options '{\"BLOCK_M\": 63}'", 2,
                   "--kernel-options: BLOCK_M is 63");
    program_expect("bench --q-len 37 --direction step --kernel-options '{\"BLOCK_N2\": 63}'", 2,
                   "--kernel-options: BLOCK_N2 is 63");
    program_expect("bench --q-len 1,37 --kv-len 900 --heads 2 --kernel-options '{\"SPLIT_KV\": 2}'" QUICK, 1,
                   "1 ok, 1 failed");
}

/* Whatever is wrong with an input is said on the standard error, also where the output goes to a file; and at once. */
Test(program, failures_are_said)
{
    static const struct {
        const char *workload, *words;
        int status;
    } wrong[] = {
        {"\"q_len\": 16, \"head_dim\": 16, \"kv_dtype\": \"f64\"", "kv_dtype: must be one of f32 f16 bf16", 2},
        {"\"q_len\": 16, \"head_dim\": 12", "head_dim is 12", 3},
        {"\"q_len\": 16, \"head_dim\": 16, \"mask\": \"doc[q] == doc[kv]\"", "unknown name 'doc'", 2},
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
        program_expect_complaint("bench --file w.json" QUICK, wrong[i].status, wrong[i].words);
        program_expect_complaint("bench --file w.json" QUICK " --json", wrong[i].status, wrong[i].words);
        program_expect_complaint("check --file w.json", wrong[i].status, wrong[i].words);
    }
    cr_assert_eq(system("echo '[{\"name\": \"a\", \"q_len\": 1048576, \"head_dim\": 16}]' > w.json"), 0);
    program_expect("check --file w.json", 2, "the limit of check's plain loops");
    cr_assert_eq(system("mkdir case && echo '{}' > case/case.json"), 0);
    program_expect_complaint("check --case case", 2, "case/q.npy");
    /* A comparison of nothing is no success. */
    program_expect("bench --workload causal --scale 0.0001" QUICK " --json base.json", 0, "causal");
    program_expect_complaint("bench --workload softcap" QUICK " --compare base.json --fail-on-slower", 1,
                             "nothing was compared");
    program_expect_complaint("bench --workload softcap" QUICK " --compare base.json", 1, "nothing was compared");
}

/* A page of one file and of two, compared without a device. */
Test(program, reports)
{
    char command[512];
    program_expect("bench --workload causal,softcap --scale 0.0001" QUICK " --json a.json", 0, "causal");
    program_expect("bench --workload alibi --scale 0.0001" QUICK " --json b.json", 0, "alibi");
    program_expect("report a.json -o a.html", 0, "");
    cr_assert_eq(system("head -c 15 a.html | grep -q DOCTYPE && grep -q softcap a.html"), 0);
    program_expect_complaint("report a.json b.json -o b.html", 1, "no row in common");
    cr_assert_eq(access("b.html", F_OK), 0, "the page shows both");
    cr_assert_eq(system("sed 's/\"real_time\": [0-9.e-]*/\"real_time\": 1e6/' a.json > slow.json"), 0);
    program_expect("report a.json a.json --fail-on-slower", 0, "2 same, 0 faster, 0 slower, 0 unknown");
    program_expect("report a.json b.json", 1, "only in the baseline");
    /* A row that is lost fails with the option alone. */
    cr_assert_eq(system("sed 's/softcap/softcup/g' a.json > lost.json"), 0);
    program_expect("report a.json lost.json", 0, "LOST (only in the baseline)");
    program_expect("report a.json lost.json --fail-on-slower", 1, "1 same, 0 faster, 0 slower, 1 unknown, 1 lost");
    /* One sample of each decides nothing; a file with many does. */
    program_expect("report a.json slow.json --fail-on-slower", 0, "2 unknown");
    cr_expect(strstr(program_output, "???? (too few samples to decide: --repetitions 9)"), "%s", program_output);
    snprintf(command, sizeof command, "report '%s/bench/results/h200-2026-11-22.json' -o /dev/full",
             getenv("ATTUNE_SOURCE"));
    program_expect(command, 1, "No space");
    program_expect("report a.json -o .", 2, "is a folder");
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
    /* A read gives a part of what a slow machine shows, whose line is drawn more often. */
    size_t length = 0;
    ssize_t more;
    while ((more = read(terminal, program_output + length, sizeof program_output - 1 - length)) > 0)
        length += (size_t)more;
    program_output[length] = '\0';
    close(shown);
    close(terminal);
    return program_output;
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
        const size_t length = strlen(program_output);
        cr_expect(strstr(program_output, work[i].words), "%s", program_output);
        cr_expect(length > 4 && !strcmp(program_output + length - 4, "\r\033[K"), "the line is removed");
        cr_expect_eq(program_run(work[i].arguments), 0);
        cr_expect(!strchr(program_output, '\r') && !strchr(program_output, '\033'), "%s", program_output);
    }
    /* A total at the end. */
    cr_expect(strstr(program_output, "2 problems: 2 good, 0 failed, 0 could not run, 0 unsupported; 0 s\n"), "%s",
              program_output);
}

/* OpenBLAS starts threads when it is loaded: only its peers load it. */
Test(program, links_no_blas)
{
    char command[4096];
    snprintf(command, sizeof command, "ldd '%s' | grep -i blas", getenv("ATTUNE_PROGRAM"));
    cr_assert_neq(system(command), 0);
    void *blas = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    program_expect(
        "bench --workload causal --scale 0.0001 --repetitions 1 --min-time 0 --warmup-time 0 --no-peaks --peers", 0,
        blas ? "peer: OpenBLAS sgemm" : "libopenblas.so.0 cannot be opened");
    cr_expect(strstr(program_output, "naive loop"), "%s", program_output);
}

/* Messages that need neither a compiler nor a GPU. */
Test(program, compile_says_what_is_missing)
{
    program_expect("compile --arch sm_86 --workload causal", 2, "-o PACK");
    program_expect("compile --workload causal -o p.pack", 2, "--arch");
    program_expect("compile --arch sm_75 --workload causal -o p.pack", 2, "sm_86");
    program_expect("compile --arch sm_86 -o p.pack", 2, "--workload");
    program_expect("compile --arch sm_86 --workload nothing -o p.pack", 2, "nothing");
    program_expect("compile --arch sm_86 --workload causal --head-dim 7 -o p.pack", 2, "--head-dim");
    /* A device that compiles nothing ahead makes no pack. */
    program_expect("compile --device-profile cpu --workload causal -o p.pack", 3, "unsupported");
    cr_expect_neq(access("p.pack", F_OK), 0);
    program_expect("check --pack nothing.pack", 2, "nothing.pack");
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
        program_expect(arguments, 0, passes[i].kernels);
    }
    const char *const mixed =
        "compile --device-profile a6000 --workload decode --dtype f32 --kv-dtype f16 --head-dim 64 -o mixed.pack";
    program_expect(mixed, 0, " 1 kernels");
    program_expect(mixed, 0, "forward  f32,f16,f32");
}
