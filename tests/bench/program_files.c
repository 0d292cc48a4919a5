/* SPDX-License-Identifier: MIT */
/* The program over files of tensors: what it reads, computes and writes. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/program.h"

TestSuite(program_files, .init = program_enter, .fini = program_leave);

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

Test(program_files, runs_on_files)
{
    const int64_t q[4] = {1, 4, 100, 32}, k[4] = {1, 2, 100, 32}, doc[1] = {100}, other[4] = {1, 2, 100, 24};
    program_save("q.npy", ATTUNE_F32, 4, q, 1);
    program_save("k.npy", ATTUNE_F32, 4, k, 2);
    program_save("v.npy", ATTUNE_F32, 4, k, 3);
    program_save("doc.npy", ATTUNE_I32, 1, doc, 4);
    program_save("bad.npy", ATTUNE_F32, 4, other, 5);
    program_save("flat.npy", ATTUNE_F32, 1, doc, 6);
#define INPUTS                                                                                                         \
    "run --q q.npy --k k.npy --v v.npy --mask 'q >= kv && doc[q] == doc[kv]' --capture doc=doc.npy "                   \
    "--score 'cap * tanh(score / cap)' --param cap=50.0 "
    program_expect(INPUTS "--out o.npy --lse lse.npy --row-max m.npy", 0, "");
    program_expect(INPUTS "--dtype f64 --out o64.npy --lse lse64.npy", 0, "");
    cr_assert_lt(largest_difference("o.npy", "o64.npy"), 1e-5);
    cr_assert_lt(largest_difference("lse.npy", "lse64.npy"), 1e-5);
    program_expect(INPUTS "--dtype bf16 --out o16.npy", 0, "");
    cr_assert_lt(largest_difference("o16.npy", "o64.npy"), 0.1);
    cr_assert_gt(largest_difference("o16.npy", "o64.npy"), 0);
    program_expect(INPUTS "--kv-dtype f16 --out kv16.npy", 0, "");
    cr_assert_lt(largest_difference("kv16.npy", "o64.npy"), 0.01);
    cr_assert_gt(largest_difference("kv16.npy", "o.npy"), 0);
    program_expect(INPUTS "--o-dtype bf16 --out out16.npy", 0, "");
    cr_assert_gt(largest_difference("out16.npy", "o.npy"), largest_difference("kv16.npy", "o.npy"));
    program_save("k16.npy", ATTUNE_F16, 4, k, 2);
    program_expect("run --q q.npy --k k16.npy --v v.npy --out o2.npy", 2, "k and v are f16 and f32");
    program_expect(INPUTS "--kernel-options '{\"BLOCK_M\": 32, \"BLOCK_N\": 64}' --out tile.npy", 0, "");
    cr_assert_lt(largest_difference("tile.npy", "o64.npy"), 1e-5);

    /* The library's warnings: keys past the end of a capture read 0, which is said and fails nothing. */
    const int64_t few[1] = {70};
    program_save("few.npy", ATTUNE_I32, 1, few, 4);
    program_expect_complaint("run --q q.npy --k k.npy --v v.npy --mask 'q >= kv && doc[q] == doc[kv]' "
                             "--capture doc=few.npy --out short.npy",
                             0, "attune: warning: the capture \"doc\" of the mask has 70 elements in dimension 0");

    /* A run that fails leaves what is there. */
    program_expect("run --q q.npy --k bad.npy --v v.npy --out o.npy", 2, "head_dim");
    cr_assert_lt(largest_difference("o.npy", "o64.npy"), 1e-5);
    program_expect("run --q q.npy --k flat.npy --v v.npy --out o.npy", 2, "rank 1, expected 4");
    program_expect("run --q q.npy --k doc.npy --v v.npy --out o.npy", 2, "rank 1");
    program_expect("run --q q.npy --k k.npy --v v.npy --mask 'doc[q] == 0' --out new.npy", 2, "doc");
    cr_assert_neq(access("new.npy", F_OK), 0);
    program_expect("run --q q.npy --k k.npy --v v.npy --out /no/such/o.npy", 2, "/no/such/o.npy");
    program_expect("run --q q.npy --k k.npy --v v.npy --out new.npy --lse /no/such/lse.npy", 2, "/no/such/lse.npy");
    cr_assert_neq(access("new.npy", F_OK), 0);
    cr_assert_neq(system("ls | grep -E 'aside|partial'"), 0, "a temporary file is left");
    program_expect("run --q q.npy --k k.npy --v v.npy --out new.npy --lse new.npy", 2, "same file");
    program_expect("run --q q.npy --k k.npy --v v.npy --out new.npy --scale 0", 2, "other than 0");
    /* A device is written to, not replaced by a file. */
    struct stat about;
    program_expect("run --q q.npy --k k.npy --v v.npy --out /dev/null", 0, "");
    cr_assert(stat("/dev/null", &about) == 0 && S_ISCHR(about.st_mode));
    program_expect("run --q q.npy --k k.npy --v v.npy --device cuda --out o.npy", 3, "cuda");
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

/* A list of integers of the type that is called "u2" and the like. */
static void save_words(const char *path, const char *type, uint32_t count, const int64_t *values)
{
    FILE *stream = fopen(path, "wb");
    cr_assert_not_null(stream);
    const size_t width = (size_t)(type[1] - '0');
    fwrite("\x93NUMPY\1\0\x76\0", 1, 10, stream);
    char header[119];
    snprintf(header, sizeof header, "{'descr': '%c%s', 'fortran_order': False, 'shape': (%u,), }",
             width > 1 ? '<' : '|', type, count);
    fprintf(stream, "%-117s\n", header);
    for (uint32_t i = 0; i < count; i++)
        fwrite(&values[i], width, 1, stream); /* little-endian, as the program is */
    cr_assert_eq(fclose(stream), 0);
}

/* A cache and a batch: what a dense call computes, what the oracle does, and what is wrong with a batch. */
Test(program_files, serves_from_files)
{
    const int64_t q[4] = {3, 4, 40, 32}, k[4] = {3, 2, 40, 32}, whole[] = {40, 40, 40}, three[1] = {3}, four[1] = {4};
    program_save("q.npy", ATTUNE_F32, 4, q, 1);
    program_save("k.npy", ATTUNE_F32, 4, k, 2);
    program_save("v.npy", ATTUNE_F32, 4, k, 3);
    program_save("sinks.npy", ATTUNE_F32, 1, four, 4);
    save_integers("whole.npy", ATTUNE_I64, 1, three, whole);
#define DENSE " --q q.npy --k k.npy --v v.npy --mask 'q >= kv' --sinks sinks.npy "
    program_expect("run" DENSE "--out o.npy --lse l.npy", 0, "");
    program_expect("run" DENSE "--kv-len whole.npy --out cached.npy --lse cached_l.npy", 0, "");
    cr_assert_lt(largest_difference("o.npy", "cached.npy"), 1e-5);
    cr_assert_lt(largest_difference("l.npy", "cached_l.npy"), 1e-5);
    program_expect("check" DENSE "--grad --dtype f32", 0, "dv");
    program_expect("check" DENSE "--kv-len whole.npy", 0, "3 problems: 3 good, 0 failed");

    /* Packed rows over pages of 8: a chunk, a prompt, rows without a key; and a page that is not there. */
    const int64_t rows[3] = {14, 4, 32}, pool[4] = {6, 2, 8, 32}, starts[] = {0, 3, 10, 12}, lengths[] = {20, 7, 0};
    const int64_t table_size[2] = {3, 3}, table[] = {4, -1, 2, 1, 77, -5, 0, 0, 0}, words[2] = {14, 1};
    const int64_t list_size[1] = {5}, list[] = {4, -1, 2, 1, 3}, list_starts[] = {0, 3, 4, 5}, firsts[] = {2, 1, 0};
    const int64_t bits[14] = {1, 3, 5, 1, 3, 7, 15, 31, 63, 127, 1, 3, 0, 0}, two[] = {2}, one[1] = {1};
    program_save("q.npy", ATTUNE_F32, 3, rows, 1);
    program_save("k.npy", ATTUNE_F32, 4, pool, 2);
    program_save("v.npy", ATTUNE_F32, 4, pool, 3);
    save_integers("starts.npy", ATTUNE_I64, 1, four, starts);
    save_integers("lengths.npy", ATTUNE_I32, 1, three, lengths);
    save_integers("table.npy", ATTUNE_I32, 2, table_size, table);
    save_integers("list.npy", ATTUNE_I64, 1, list_size, list);
    save_integers("list_starts.npy", ATTUNE_I32, 1, four, list_starts);
    save_integers("firsts.npy", ATTUNE_I32, 1, three, firsts);
    save_integers("bits.npy", ATTUNE_I64, 2, words, bits);
    save_integers("two.npy", ATTUNE_U8, 1, one, two);
#define BATCH " --q q.npy --k k.npy --v v.npy --kv-len lengths.npy --q-start starts.npy "
    program_expect("check" BATCH "--pages table.npy --mask 'q >= kv && row % 3 != kv' --score 'score + 0.1 * row'", 0,
                   "3 good, 0 failed");
    program_expect("check" BATCH "--pages list.npy --pages-start list_starts.npy --kv-first firsts.npy --tree bits.npy "
                   "--sinks sinks.npy --mask 'q >= kv' --dtype f32 --kv-dtype bf16",
                   0, "1 good, 0 failed");
    program_expect(
        "check --q q.npy --k k.npy --head-dim-v 24 --kv-len lengths.npy --q-start starts.npy --pages table.npy "
        "--count two.npy --dtype f32",
        0, "1 good, 0 failed");
    program_expect("run" BATCH "--pages table.npy --mask 'q >= kv' --out o.npy", 0, "");
    program_expect("run" BATCH "--pages list.npy --pages-start list_starts.npy --mask 'q >= kv' --out list_o.npy", 0,
                   "");
    cr_assert_eq(largest_difference("o.npy", "list_o.npy"), 0);

    /* Lengths, starts and bits of every width; a value that does not fit is named. */
    static const char *const widths[] = {"i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"};
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        save_words("w_lengths.npy", widths[i], 3, lengths);
        save_words("w_starts.npy", widths[i], 4, starts);
        program_expect("run --q q.npy --k k.npy --v v.npy --kv-len w_lengths.npy --q-start w_starts.npy --pages "
                       "table.npy --mask 'q >= kv' --out w.npy",
                       0, "");
        cr_assert_eq(largest_difference("o.npy", "w.npy"), 0);
    }
    const int64_t large[] = {20, -1, 0}, past_i32[] = {20, INT64_C(1) << 32, 0};
#define WIDE                                                                                                           \
    "run --q q.npy --k k.npy --v v.npy --q-start starts.npy --pages table.npy --out x.npy --kv-len w_lengths.npy"
    save_words("w_lengths.npy", "u8", 3, large);
    program_expect(WIDE, 2, "--kv-len: w_lengths.npy: has 18446744073709551615, expected -2147483648 to 2147483647");
    save_words("w_lengths.npy", "u4", 3, large);
    program_expect(WIDE, 2, "has 4294967295, expected -2147483648 to 2147483647");
    save_words("w_lengths.npy", "i8", 3, past_i32);
    program_expect(WIDE, 2, "has 4294967296, expected -2147483648 to 2147483647");
    save_words("w_lengths.npy", "c8", 3, lengths);
    program_expect(WIDE, 2, "element type '<c8', expected integers: |i1 <i2 <i4 <i8 |u1 <u2 <u4 or <u8");

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
        {"run" BATCH "--pages q.npy --out x.npy", "element type '<f4', expected integers"},
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
        program_expect(wrong[i].arguments, 2, wrong[i].words);
    cr_assert_neq(access("x.npy", F_OK), 0);
}

/* No output replaces an input, whatever its path. */
Test(program_files, spares_its_inputs)
{
    const int64_t size[4] = {1, 1, 20, 16}, doc[1] = {20};
    program_save("q.npy", ATTUNE_F32, 4, size, 1);
    program_save("doc.npy", ATTUNE_I32, 1, doc, 1);
    cr_assert_eq(system("cp q.npy was.npy && ln q.npy hard.npy && ln -s q.npy soft.npy && cp doc.npy doc_was.npy"), 0);
#define ALONE "run --q q.npy --k q.npy --v q.npy "
    program_expect(ALONE "--out q.npy", 2, "--out q.npy and --q q.npy are the same file");
    program_expect(ALONE "--out o.npy --lse ./hard.npy", 2, "--lse ./hard.npy and --q q.npy are the same file");
    program_expect(ALONE "--out soft.npy", 2, "expected another file");
    program_expect(ALONE "--mask 'doc[q] == doc[kv]' --capture doc=doc.npy --out doc.npy", 2,
                   "--out doc.npy and --capture doc.npy are the same file");
    program_expect(ALONE "--pack doc.npy --out doc.npy", 2, "--pack doc.npy are the same file");
    program_expect("mask 'doc[q] == doc[kv]' --q-len 20 --capture doc=doc.npy --no-picture --svg doc.npy", 2,
                   "--svg doc.npy and --capture doc.npy are the same file");
    cr_assert_eq(system("cmp q.npy was.npy && cmp doc.npy doc_was.npy"), 0);
    cr_assert_neq(access("o.npy", F_OK), 0);
#define ONE_ROW                                                                                                        \
    "bench --workload causal --scale 0.0001 --repetitions 1 --min-time 0 --warmup-time 0 --no-peers --no-peaks "
    program_expect(ONE_ROW "--json j.json", 0, "causal");
    cr_assert_eq(system("cp j.json was.json && echo 9 > lengths && echo '[{\"name\": \"a\", \"q_len\": 16, "
                        "\"head_dim\": 16}]' > w.json"),
                 0);
    program_expect("report j.json -o j.json", 2, "-o j.json and the result j.json are the same file");
    program_expect("report was.json j.json -o j.json", 2, "same file");
    program_expect(ONE_ROW "--compare j.json --json j.json", 2, "--json j.json and --compare j.json are the same file");
    program_expect("bench --masks --doc-lengths lengths --json lengths", 2, "--doc-lengths lengths are the same file");
    program_expect("bench --file w.json --json w.json", 2, "--file w.json are the same file");
    program_expect("compile --arch sm_86 --file w.json -o w.json", 2, "--file w.json are the same file");
    cr_assert_eq(system("cmp j.json was.json"), 0);
    /* Text goes elsewhere where standard output is the file. */
    program_expect("mask causal --q-len 300 --svg /dev/stdout --lists 2>text > m.svg; cat text", 0, "built in");
    program_expect("mask causal --q-len 300 --no-picture --svg whole.svg", 0, "built in");
    cr_assert_eq(system("cmp m.svg whole.svg"), 0);
    program_expect("mask causal --q-len 300 --svg /dev/stdout 2>text | cmp - whole.svg", 0, "");
    program_expect("report j.json was.json -o /dev/stdout 2>text > page.html; cat text", 0, "was against j");
    cr_assert_eq(system("head -c 15 page.html | grep -q DOCTYPE"), 0);
    program_expect(ONE_ROW "--json /dev/stdout 2>text > k.json; cat text", 0, "causal");
    cr_assert_eq(system("python3 -m json.tool k.json >/dev/null"), 0);
}

/* Files that a command writes: none is another, each keeps its permissions, and all are there or none. */
Test(program_files, writes_files_together)
{
    const int64_t size[4] = {1, 1, 20, 16};
    struct stat about;
    program_save("q.npy", ATTUNE_F32, 4, size, 1);
#define SELF "run --q q.npy --k q.npy --v q.npy "
    program_expect(SELF "--out a.npy --lse ./a.npy", 2, "same file");
    cr_assert_neq(access("a.npy", F_OK), 0);
    program_expect(SELF "--out a.npy --lse lse.npy", 0, "");
    cr_assert_eq(system("ln a.npy hard.npy && ln -s a.npy soft.npy"), 0);
    program_expect(SELF "--out a.npy --lse hard.npy", 2, "same file");
    program_expect(SELF "--out soft.npy --row-max a.npy", 2, "same file");
    program_expect(SELF "--out b.npy --lse /dev/full", 1, "--lse: /dev/full could not be written: No space");
    cr_assert_neq(access("b.npy", F_OK), 0);
    program_expect(SELF "--out /dev/full", 1, "No space");
    cr_assert_eq(chmod("lse.npy", 0600), 0);
    program_expect(SELF "--out b.npy --lse lse.npy", 0, "");
    cr_assert(stat("lse.npy", &about) == 0 && (about.st_mode & 0777) == 0600);
    program_expect(SELF "--out /dev/stdout --lse c.npy > piped.npy", 0, "");
    cr_assert_lt(largest_difference("piped.npy", "b.npy"), 1e-30);
    /* Names that once were temporary are a stranger's. */
    cr_assert_eq(system("echo mine > j.json.tmp && echo mine > m.png.tmp"), 0);
    program_expect(
        "bench --workload causal --scale 0.0001 --repetitions 1 --min-time 0 --warmup-time 0 --no-peers --no-peaks "
        "--json j.json",
        0, "causal");
    cr_assert_eq(system("grep -q mine j.json.tmp && grep -q benchmarks j.json"), 0);
    program_expect("mask causal --no-picture --png /dev/full", 1, "No space");
    program_expect("mask causal --no-picture --png .", 2, "is a folder");
    cr_assert_eq(system("mkdir locked && ln -s ../j.json.tmp locked/m.png"), 0);
    program_expect("mask causal --no-picture --png locked/m.png", 0, "");
    cr_assert_eq(system("grep -q mine j.json.tmp"), 0, "a link is replaced, not followed");
    /* Likewise captures. */
#define CAPTURES                                                                                                       \
    "bench --workload alibi --scale 0.0001 --repetitions 1 --min-time 0 --warmup-time 0 --no-peers --no-peaks "
    cr_assert_eq(system("mkdir made && ln -s ../j.json.tmp made/alibi.slopes.npy"), 0);
    program_expect(CAPTURES "--write-captures made", 0, "alibi");
    cr_assert_eq(system("grep -q mine j.json.tmp && grep -q NUMPY made/alibi.slopes.npy"), 0);
    program_expect(CAPTURES "--write-captures none", 2, "--write-captures: none cannot be written to: No such file");
    program_expect(CAPTURES "--write-captures q.npy", 2,
                   "--write-captures: q.npy cannot be written to: Not a directory");
    program_expect("bench --workload serve_tree --write-captures made", 2, "write no captures");
    cr_assert_neq(system("find . | grep -E 'aside|partial|attune-tmp'"), 0, "a temporary file is left");
}
