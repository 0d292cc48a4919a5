/* SPDX-License-Identifier: MIT */
/* The table of workloads: shapes, shrinking, and the rules of what the generators make; files good and hostile. */
#include "tests/oracle/segments.h"
#include "bench/workloads/workload.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static attune_instance *instance;

static void setup(void)
{
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
}

static void teardown(void)
{
    attune_instance_destroy(instance);
}

TestSuite(workload, .init = setup, .fini = teardown);

static double pairs(const workload *w)
{
    return (double)(w->batch * w->heads) * (double)w->q_len * (double)w->kv_len;
}

Test(workload, the_table_is_sound)
{
    cr_assert_geq(workload_count(), 16);
    cr_assert_null(workload_get(workload_count()));
    cr_assert_null(workload_find("no such workload"));
    for (uint32_t i = 0; i < workload_count(); ++i) {
        const workload *w = workload_get(i);
        cr_assert_eq(workload_find(w->name), w, "names are unique: %s", w->name);
        cr_assert_gt(strlen(w->description), 20);
        cr_assert_lt(strlen(w->description), sizeof w->description - 1, "%s: the description is cut", w->name);
        cr_assert_eq(w->heads % w->kv_heads, 0);
        cr_assert_eq(w->head_dim % 8, 0);
        cr_assert(w->head_dim >= 8 && w->head_dim <= 256 && w->head_dim_v <= 256);
        cr_assert(w->density > 0 && w->density <= 1);
        if (w->side)
            cr_assert(w->q_len == w->side * w->side && w->kv_len == w->q_len);
    }
}

Test(workload, shrinking_keeps_the_structure)
{
    static const double scales[] = {1, 0.5, 0.1, 1.0 / 64, 1e-3, 1e-5, 1e-9};
    for (uint32_t i = 0; i < workload_count(); ++i)
        for (size_t k = 0; k < sizeof scales / sizeof scales[0]; ++k) {
            const workload *w = workload_get(i);
            workload s = workload_scaled(w, scales[k]);
            cr_assert_eq(s.heads * w->kv_heads, w->heads * s.kv_heads, "%s: ratio of heads", w->name);
            cr_assert(s.q_len >= 1 && s.kv_len >= 1 && s.batch >= 1 && s.kv_heads >= 1);
            cr_assert(s.q_len <= w->q_len && s.kv_len <= w->kv_len && s.batch <= w->batch);
            cr_assert_eq(s.head_dim, w->head_dim);
            if (w->kv_len % w->q_len == 0 && w->q_len > 1)
                cr_assert_eq(s.q_len * (w->kv_len / w->q_len), s.kv_len, "%s: ratio of lengths", w->name);
            if (w->side)
                cr_assert_eq(s.side * s.side, s.kv_len);
            int64_t lengths[SEGMENTS_MAX], sum = 0;
            for (uint32_t n = workload_cut(&s, lengths); n-- > 0; sum += lengths[n])
                cr_assert_gt(lengths[n], 0, "%s: segment %u", w->name, n);
            cr_assert(!w->segments || sum == s.kv_len, "%s: segments of %lld keys", w->name, (long long)sum);
            double share = pairs(&s) / pairs(w);
            /* To a factor that rounding of lengths and heads explains, unless the smallest shape is reached. */
            if (s.kv_len > 128 && scales[k] >= 1e-3)
                cr_assert(share < 3 * scales[k] && share > scales[k] / 3, "%s at %g: share %g", w->name, scales[k],
                          share);
            if (scales[k] == 1)
                cr_assert_eq(share, 1);
        }
    workload window = workload_scaled(workload_find("sliding_window"), 1.0 / 64);
    cr_assert_float_eq(window.parameters[0].value / (double)window.kv_len, 0.25, 0.01, "the window keeps its share");
    cr_assert_eq(workload_scaled(workload_find("decode"), 0.25).q_len, 1);
    cr_assert_eq(workload_scaled(workload_find("causal"), NAN).q_len, 8192, "no scale is the whole");
}

static const attune_host_capture *capture(const attention *a, const char *name)
{
    for (uint32_t i = 0; i < a->capture_count; ++i)
        if (!strcmp(a->captures[i].name, name))
            return &a->captures[i];
    cr_assert(false, "no capture %s", name);
    return NULL;
}

Test(workload, every_workload_instantiates_shrunk)
{
    for (uint32_t i = 0; i < workload_count(); ++i) {
        workload w = workload_scaled(workload_get(i), 1e-6);
        attention a, again;
        failure why = {{0}};
        w.dtype = ATTUNE_F32;
        cr_assert(workload_instantiate(instance, &w, 3, &a, &why), "%s: %s", w.name, why.message);
        cr_assert(workload_instantiate(instance, &w, 3, &again, &why));
        cr_assert_eq(a.mask != NULL, w.mask[0] != '\0');
        cr_assert_eq(a.score != NULL, w.score[0] != '\0');
        cr_assert_float_eq(a.scale, w.scale > 0 ? w.scale : 1 / sqrt(w.head_dim), 1e-12);
        int64_t count = array_count(&a.q), zeros = 0;
        cr_assert_eq(count, w.batch * w.heads * w.q_len * w.head_dim);
        cr_assert_eq(memcmp(a.q.data, again.q.data, (size_t)count * 4), 0, "the same seed, the same data");
        for (int64_t n = 0; n < count; ++n)
            zeros += array_get(&a.q, n) == 0;
        cr_assert_lt(zeros, 1 + count / 1000, "%s: inputs are never zeros", w.name);
        cr_assert_neq(memcmp(a.k.data, a.v.data, 64), 0);
        workload_release(&a);
        workload_release(&again);
    }
}

Test(workload, mask_rows_bind)
{
    for (uint32_t i = 0; i < workload_mask_count(); ++i) {
        attention a;
        failure why = {{0}};
        cr_assert(workload_bind(instance, workload_mask_get(i), 1, &a, &why), "%s", why.message);
        cr_assert(a.mask && !a.q.data);
        workload_release(&a);
    }
    cr_assert_null(workload_mask_get(workload_mask_count()));
}

Test(workload, documents_are_runs_with_a_heavy_tail)
{
    attention a;
    failure why = {{0}};
    cr_assert(workload_bind(instance, workload_mask_get(2), 1, &a, &why), "%s", why.message);
    const int32_t *doc = capture(&a, "doc")->array.data;
    int64_t n = capture(&a, "doc")->array.size[0], longest = 0, run = 0;
    cr_assert_eq(doc[0], 0);
    for (int64_t i = 1; i < n; ++i) {
        cr_assert(doc[i] == doc[i - 1] || doc[i] == doc[i - 1] + 1);
        run = doc[i] == doc[i - 1] ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    double mean = (double)n / (doc[n - 1] + 1);
    cr_assert(mean > 1000 && mean < 15000, "mean %g", mean);
    cr_assert_gt((double)longest, 3 * mean);
    workload_release(&a);
}

Test(workload, document_ids_follow_given_lengths)
{
    int32_t ids[8];
    workload_document_ids(ids, 8, (const int64_t[]){3, 0, 2}, 3);
    cr_assert_arr_eq(ids, ((int32_t[]){0, 0, 0, 1, 2, 2, 3, 3}), sizeof ids);
    workload_document_ids(ids, 8, NULL, 0);
    cr_assert_eq(ids[7], 0);
}

Test(workload, rows_keep_a_share_that_can_be_measured)
{
    const workload *causal = workload_find("causal"), *decode = workload_find("decode");
    cr_assert_eq(workload_share(causal, 0.5), 0.5);
    cr_assert_float_eq(workload_share(causal, 1e-6) * workload_flop(causal), 1e9, 1);
    const double least = 1e10 / workload_flop(decode);
    cr_assert_float_eq(workload_share(decode, 1e-6), least < 1 ? least : 1, 1e-12);
    cr_assert_eq(workload_share(causal, 1), 1);
}

Test(workload, draft_anchors_are_sorted_places_in_the_context)
{
    const workload *w = workload_find("dflash");
    attention a;
    failure why = {{0}};
    cr_assert(workload_bind(instance, w, 5, &a, &why), "%s", why.message);
    const attune_array *anchors = &capture(&a, "anchors")->array, *kept = &capture(&a, "kept")->array;
    cr_assert_eq(anchors->size[1], 512);
    const int32_t *at = anchors->data;
    int64_t dropped = 0;
    for (int64_t i = 0; i < anchors->size[1]; ++i) {
        cr_assert(at[i] >= 1 && at[i] <= w->kv_len - w->q_len);
        cr_assert(i == 0 || at[i] >= at[i - 1]);
        dropped += !((const unsigned char *)kept->data)[i];
    }
    cr_assert(dropped > 0 && dropped < 100, "%lld dropped", (long long)dropped);
    workload_release(&a);
}

Test(workload, prefixes_own_the_answers_after_them)
{
    attention a;
    failure why = {{0}};
    cr_assert(workload_bind(instance, workload_find("shared_prefix"), 5, &a, &why), "%s", why.message);
    const int32_t *doc = capture(&a, "doc")->array.data, *owner = capture(&a, "owner")->array.data;
    for (int64_t i = 0; i < capture(&a, "doc")->array.size[0]; ++i) {
        cr_assert(owner[i] <= doc[i]);
        cr_assert_eq(owner[i] % 9, 0, "the first part of each group");
        cr_assert_lt(doc[i] - owner[i], 9);
    }
    workload_release(&a);
}

Test(workload, alibi_slopes_of_any_number_of_heads)
{
    workload w = *workload_find("alibi");
    attention a;
    failure why = {{0}};
    w.q_len = w.kv_len = 16;
    w.heads = w.kv_heads = 12;
    cr_assert(workload_bind(instance, &w, 1, &a, &why), "%s", why.message);
    const float *slopes = capture(&a, "slopes")->array.data;
    cr_assert_float_eq(slopes[0], 0.5, 1e-7);
    cr_assert_float_eq(slopes[7], 1.0 / 256, 1e-9);
    cr_assert_float_eq(slopes[8], exp2(-0.5), 1e-7); /* the odd ones of 16 heads */
    cr_assert_float_eq(slopes[11], exp2(-3.5), 1e-7);
    workload_release(&a);
}

/* ------------------------------------------------------------------------------------------------------------ files */

Test(workload, a_file_says_what_the_table_says)
{
    static const char text[] =
        "[{\"name\": \"mine\", \"mask\": \"q >= kv && doc[q] == doc[kv] && q - kv < width\","
        " \"score\": \"score + bias[q - kv + 255, h] * strength\", \"heads\": 4, \"kv_heads\": 2, \"q_len\": 256,"
        " \"head_dim\": 64, \"dtype\": \"f16\", \"captures\": {\"doc\": {\"generator\": \"document\", \"length\": 40},"
        " \"bias\": {\"generator\": \"normal\", \"size\": [511, 4], \"spread\": 0.1}},"
        " \"parameters\": {\"width\": {\"value\": 64, \"shrink\": \"length\"}, \"strength\": 0.5}},"
        " {\"name\": \"given\", \"q_len\": 4, \"head_dim\": 8, \"mask\": \"ok[q]\","
        " \"captures\": {\"ok\": {\"values\": [true, false, true, true], \"dtype\": \"bool\"}}}]";
    workload *list;
    uint32_t count;
    failure why = {{0}};
    cr_assert(workload_parse(text, sizeof text - 1, "text", false, &list, &count, &why), "%s", why.message);
    cr_assert_eq(count, 2);
    cr_assert_eq(list[0].kv_len, 256);
    cr_assert_eq(list[0].dtype, ATTUNE_F16);
    cr_assert_eq(list[0].parameters[0].dtype, ATTUNE_I32);
    cr_assert_eq(list[0].parameters[1].dtype, ATTUNE_F32);
    for (uint32_t i = 0; i < count; ++i) {
        attention a;
        cr_assert(workload_instantiate(instance, &list[i], 1, &a, &why), "%s", why.message);
        workload_release(&a);
    }
    cr_assert_eq(workload_scaled(&list[1], 0.1).q_len, 4, "given arrays keep the shape");
    workload_list_free(list, count);
}

Test(workload, sizes_follow_the_shape)
{
    static const char text[] =
        "{\"name\": \"a\", \"batch\": 2, \"heads\": 4, \"q_len\": 512, \"head_dim\": 8,"
        " \"score\": \"score + x[h, kv, b, 1]\", \"captures\": {\"x\": {\"generator\": \"normal\","
        " \"size\": [\"heads\", \"tokens\", \"batch\", 3]}}}";
    workload *list;
    uint32_t count;
    failure why = {{0}};
    attention a;
    cr_assert(workload_parse(text, sizeof text - 1, "text", false, &list, &count, &why), "%s", why.message);
    const workload w = workload_scaled(&list[0], 0.001);
    cr_assert_lt(w.kv_len, 512);
    cr_assert(workload_bind(instance, &w, 1, &a, &why), "%s", why.message);
    const int64_t size[] = {w.heads, w.kv_len, w.batch, 3};
    cr_assert_arr_eq(capture(&a, "x")->array.size, size, sizeof size);
    workload_release(&a);
    workload_list_free(list, count);
}

Test(workload, trees_nest)
{
    static const char text[] =
        "{\"name\": \"a\", \"q_len\": 2048, \"head_dim\": 8, \"mask\": \"q <= last[kv]\", \"captures\":"
        " {\"last\": {\"generator\": \"tree\", \"length\": 64, \"spread\": 4}}}";
    workload *list;
    uint32_t count;
    failure why = {{0}};
    attention a;
    cr_assert(workload_parse(text, sizeof text - 1, "text", false, &list, &count, &why), "%s", why.message);
    cr_assert(workload_bind(instance, &list[0], 3, &a, &why), "%s", why.message);
    const int32_t *last = capture(&a, "last")->array.data;
    int leaves = 0;
    for (int32_t i = 0; i < 2048; ++i) {
        cr_assert(last[i] >= i && last[i] < 2048);
        for (int32_t j = i; j <= last[i]; ++j)
            cr_assert_leq(last[j], last[i]);
        leaves += last[i] == i;
    }
    cr_assert(leaves > 100 && leaves < 1900, "%d leaves", leaves);
    workload_release(&a);
    workload_list_free(list, count);
}

Test(workload, bad_files_have_a_reason)
{
#define BASE "{\"name\": \"a\", \"q_len\": 8, \"head_dim\": 8"
    static const struct {
        const char *text, *reason;
    } bad[] = {
        {"", "text:"},
        {"[]", "list"},
        {"3", "text:1:1"},
        {"[3]", "object"},
        {"{}", "name"},
        {"{\"name\": \"a b\"}", "name"},
        {"{\"name\": \"a\"}", "head_dim"},
        {"{\"name\": \"a\", \"head_dim\": 8}", "q_len"},
        {BASE ", \"name\": \"b\"}", "duplicate"},
        {BASE ", \"colour\": 1}", "unknown key"},
        {BASE ", \"heads\": 0}", "from 1"},
        {BASE ", \"heads\": 1.5}", "whole"},
        {BASE ", \"heads\": 4, \"kv_heads\": 3}", "divide"},
        {BASE ", \"kv_batch\": 2, \"batch\": 3}", "kv_batch"},
        {BASE ", \"batch\": 1048576, \"heads\": 65536}", "2^28 rows"},
        {"{\"name\": \"a\", \"q_len\": 2147483647, \"head_dim\": 8}", "q would have more than 2^28 rows"},
        {BASE ", \"kv_len\": 2147483647}", "k would have more than 2^28 rows"},
        {"{\"name\": \"a\", \"q_len\": 268435456, \"head_dim\": 4096}", "2^36"},
        {BASE ", \"side\": 4}", "square"},
        {BASE ", \"segments\": 25}", "from 2"},
        {BASE ", \"kv_len\": 16, \"segments\": 3}", "kv_len"},
        {BASE ", \"dtype\": \"i32\"}", "dtype: must be one of f32 f16 bf16 f64"},
        {BASE ", \"dtype\": \"half\"}", "dtype: must be one of f32 f16 bf16 f64"},
        {BASE ", \"kv_dtype\": \"half\"}", "kv_dtype: must be one of f32 f16 bf16"},
        {BASE ", \"o_dtype\": \"f64\"}", "o_dtype: must be one of f32 f16 bf16"},
        {BASE ", \"captures\": {\"x\": {\"values\": [1], \"dtype\": \"f64\"}}}",
         "x: dtype must be one of f32 f16 bf16 i32 i64 u8 bool"},
        {BASE ", \"mask\": 1}", "string"},
        {BASE ", \"scale\": 0}", "scale"},
        {BASE ", \"captures\": []}", "captures"},
        {BASE ", \"captures\": {\"x\": {}}}", "one of"},
        {BASE ", \"captures\": {\"x y\": {\"generator\": \"document\"}}}", "letters"},
        {BASE ", \"captures\": {\"x\": {\"generator\": \"magic\"}}}", "generator"},
        {BASE ", \"captures\": {\"x\": {\"generator\": \"document\", \"lenght\": 3}}}", "unknown key"},
        {BASE ", \"captures\": {\"x\": {\"generator\": \"normal\"}}}", "size"},
        {BASE ", \"captures\": {\"x\": {\"generator\": \"normal\", \"size\": [\"keys\"]}}}", "tokens, batch or heads"},
        {BASE ", \"captures\": {\"x\": {\"generator\": \"normal\", \"size\": \"tokens\"}}}", "list"},
        {BASE ", \"captures\": {\"x\": {\"generator\": \"tree\", \"size\": [\"tokens\"]}}}", "takes no size"},
        {BASE ", \"captures\": {\"x\": {\"npy\": \"/etc/passwd\"}}}", "file"},
        {BASE ", \"captures\": {\"x\": {\"values\": []}}}", "values"},
        {BASE ", \"captures\": {\"x\": {\"values\": [1, \"a\"]}}}", "number"},
        {BASE ", \"captures\": {\"x\": {\"values\": [1, 2], \"size\": [3]}}}", "size"},
        {BASE ", \"captures\": {\"x\": {\"values\": [1.5], \"dtype\": \"i32\"}}}", "whole"},
        {BASE ", \"captures\": {\"x\": {\"values\": [300], \"dtype\": \"u8\"}}}", "255"},
        {BASE ", \"parameters\": {\"x\": \"y\"}}", "number"},
        {BASE ", \"mask\": \"xx[q] > 1\", \"captures\": {\"x\": {\"values\": [1]}}}",
         "captures: neither mask nor score uses x"},
        {BASE ", \"score\": \"score * h\", \"parameters\": {\"n\": 1}}", "parameters: neither mask nor score uses n"},
        {BASE ", \"parameters\": {\"x\": {\"value\": 1, \"dtype\": \"f16\"}}}", "x: dtype must be one of i32 f32"},
        {BASE ", \"parameters\": {\"x\": {\"value\": 1, \"shrink\": \"much\"}}}", "shrink"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        workload *list = (workload *)1;
        uint32_t count = 1;
        failure why = {{0}};
        cr_assert_not(workload_parse(bad[i].text, strlen(bad[i].text), "text", false, &list, &count, &why), "%s",
                      bad[i].text);
        const char *found = strstr(why.message, bad[i].reason);
        cr_assert(found, "%s: %s", bad[i].text, why.message);
        if (strstr(bad[i].reason, "must be one of"))
            cr_assert_str_eq(found, bad[i].reason, "types that the field refuses are not listed");
        cr_assert(list == NULL && count == 0);
    }
    workload *list;
    uint32_t count;
    failure why = {{0}};
    cr_assert_not(workload_load("/nonexistent.json", &list, &count, &why));
    cr_assert(strstr(why.message, "/nonexistent.json"));
}
