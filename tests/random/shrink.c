/* SPDX-License-Identifier: MIT */
/* From a problem that fails to the smallest with the same failure, and to a program that shows it. */
#include "random/place.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct search {
    runner *r;
    problem *best;
    finding *f;
    int tries;
    double until;
} search;

/* Keeps `smaller` if it still fails in the same way. */
static bool keep(search *s, const problem *smaller)
{
    finding f;
    if (s->tries <= 0 || now() > s->until)
        return false;
    s->tries--;
    if (run_problem(s->r, smaller, &f) || strcmp(f.kind, s->f->kind) != 0)
        return false;
    *s->best = *smaller;
    *s->f = f;
    return true;
}

#define TRY_FIELD(s, field, value)                                                                                     \
    do {                                                                                                               \
        problem try_ = *(s)->best;                                                                                     \
        call *c_ = &try_.calls[0];                                                                                     \
        (void)c_;                                                                                                      \
        if ((field) != (value)) {                                                                                      \
            (field) = (value);                                                                                         \
            (void)keep((s), &try_);                                                                                    \
        }                                                                                                              \
    } while (0)

static void shrink_call(search *s)
{
    for (int i = s->best->call_count; i-- > 0;) {
        problem one = *s->best;
        one.calls[0] = s->best->calls[i];
        one.call_count = 1;
        if (one.call_count < s->best->call_count && i == s->f->call && keep(s, &one))
            return;
    }
}

static void shrink_kinds(search *s)
{
    TRY_FIELD(s, try_.has_options, false);
    TRY_FIELD(s, try_.options_of_pass, false);
    TRY_FIELD(s, try_.mask_by_hand, false);
    TRY_FIELD(s, try_.mask, MASK_NONE);
    problem plain = *s->best;
    plain.has_score = false;
    plain.score = (tree){0};
    if (s->best->has_score)
        (void)keep(s, &plain);
    if (s->best->mask > MASK_EXPR)
        TRY_FIELD(s, try_.mask, MASK_EXPR);
    TRY_FIELD(s, c_->mutation, 0);
    TRY_FIELD(s, c_->repeat, false);
    TRY_FIELD(s, c_->seconds, false);
    TRY_FIELD(s, c_->data, DATA_NORMAL);
    TRY_FIELD(s, c_->more_names, false);
    TRY_FIELD(s, c_->mask_more_q, 0);
    TRY_FIELD(s, c_->mask_more_kv, 0);
    TRY_FIELD(s, c_->workspace_offset, 0);
    TRY_FIELD(s, c_->shrink_captures, 0);
    TRY_FIELD(s, try_.sinks, false);
    TRY_FIELD(s, c_->want_d_sinks, false);
    TRY_FIELD(s, c_->want_d_lse, false);
    TRY_FIELD(s, c_->want_captures, 0);
    TRY_FIELD(s, c_->want_row_max, false);
    TRY_FIELD(s, c_->want_lse, false);
    TRY_FIELD(s, try_.row_max, false);
    TRY_FIELD(s, try_.lse, false);
    TRY_FIELD(s, try_.scale, 0);
    TRY_FIELD(s, try_.threads, LOOPS_OWN);
    TRY_FIELD(s, try_.kv_dtype, s->best->dtype);
    TRY_FIELD(s, try_.o_dtype, s->best->dtype);
    if (s->best->dtype == s->best->kv_dtype && s->best->dtype == s->best->o_dtype) {
        problem wide = *s->best;
        wide.dtype = wide.kv_dtype = wide.o_dtype = ATTUNE_F32;
        if (s->best->dtype != ATTUNE_F32)
            (void)keep(s, &wide);
    }
    TRY_FIELD(s, c_->slice_batch0, 0);
    TRY_FIELD(s, c_->slice_heads0, 0);
    TRY_FIELD(s, c_->slice_block0, 0);
    if (s->best->segments) {
        problem whole = *s->best;
        whole.segments = 0;
        whole.calls[0].segment_count = 0;
        if (whole.kv_len < whole.calls[0].kv_len)
            whole.kv_len = whole.calls[0].kv_len;
        (void)keep(s, &whole);
    }
}

static void shrink_layouts(search *s)
{
    problem plain = *s->best;
    call *c = &plain.calls[0];
    layout *all[] = {&c->q,     &c->k,   &c->v,   &c->o,   &c->lse,    &c->row_max, &c->d_o,
                     &c->d_lse, &c->d_q, &c->d_k, &c->d_v, &c->tensor, &c->sinks,   &c->d_sinks};
    const size_t count = sizeof all / sizeof *all;
    for (size_t i = 0; i < count; i++)
        *all[i] = (layout){0};
    memset(c->captures, 0, sizeof c->captures);
    memset(c->d_captures, 0, sizeof c->d_captures);
    memset(c->host, 0, sizeof c->host);
    if (keep(s, &plain))
        return;
    for (size_t i = 0; i < count; i++) {
        plain = *s->best;
        *all[i] = (layout){0};
        if (memcmp(&plain, s->best, sizeof plain) != 0)
            (void)keep(s, &plain);
    }
}

/* The plan as long as the call, and the call shorter. */
static bool lengths(search *s, int64_t batch, int64_t q_len, int64_t kv_len)
{
    problem p = *s->best;
    call *c = &p.calls[0];
    if (batch < 1 || q_len < 1 || kv_len < 1)
        return false;
    if (!p.segments) {
        c->kv_len = kv_len;
        p.kv_len = kv_len < p.kv_len ? kv_len : p.kv_len;
    }
    c->batch = batch;
    c->q_len = q_len;
    if (p.kv_batch != 1)
        p.kv_batch = batch;
    p.batch = batch;
    p.q_len = q_len;
    if (p.kv_batch == 1 && p.batch == 1)
        p.kv_batch = 1;
    return memcmp(&p, s->best, sizeof p) != 0 && keep(s, &p);
}

static void shrink_sizes(search *s)
{
    for (bool less = true; less;) {
        const call c = s->best->calls[0];
        less = lengths(s, 1, c.q_len, c.kv_len);
        less |= lengths(s, s->best->calls[0].batch, 1, s->best->calls[0].kv_len);
        less |= lengths(s, s->best->calls[0].batch, s->best->calls[0].q_len / 2, s->best->calls[0].kv_len);
        less |= lengths(s, s->best->calls[0].batch, s->best->calls[0].q_len - 1, s->best->calls[0].kv_len);
        less |= lengths(s, s->best->calls[0].batch, s->best->calls[0].q_len, s->best->calls[0].kv_len / 2);
        less |= lengths(s, s->best->calls[0].batch, s->best->calls[0].q_len, s->best->calls[0].kv_len - 1);
        for (int i = 0; i < s->best->calls[0].segment_count; i++) {
            problem p = *s->best;
            call *p_call = &p.calls[0];
            p_call->kv_len -= p_call->segment[i] - p_call->segment[i] / 2;
            p_call->segment[i] /= 2;
            less |= p_call->segment[i] > 0 && keep(s, &p);
        }
        problem p = *s->best;
        p.heads = p.heads / p.kv_heads;
        p.kv_heads = 1;
        less |= p.heads != s->best->heads && keep(s, &p);
        p = *s->best;
        p.heads = p.kv_heads;
        less |= p.heads != s->best->heads && keep(s, &p);
        p = *s->best;
        p.head_dim = p.head_dim >= 16 ? p.head_dim / 16 * 8 : 8;
        less |= p.head_dim != s->best->head_dim && keep(s, &p);
        p = *s->best;
        p.head_dim_v = p.head_dim_v >= 16 ? p.head_dim_v / 16 * 8 : 8;
        less |= p.head_dim_v != s->best->head_dim_v && keep(s, &p);
        less &= s->tries > 0 && now() < s->until;
    }
}

static tree *tree_of(problem *p, int which)
{
    return which < 2 ? &p->masks[which] : &p->score;
}

static void shrink_trees(search *s)
{
    for (int which = 0; which < 3; which++)
        for (bool less = true; less;) {
            less = false;
            for (int at = tree_of(s->best, which)->count - 1; at >= 0 && !less; at--) {
                const node *n = &tree_of(s->best, which)->nodes[at];
                for (int k = -1; k < n->count && !less; k++) {
                    problem p = *s->best;
                    less = tree_replace(tree_of(&p, which), at, k < 0 ? -1 : n->kid[k]) && keep(s, &p);
                }
            }
        }
}

void shrink_problem(runner *r, problem *p, finding *f, int tries, double seconds)
{
    search s = {r, p, f, tries, now() + seconds};
    shrink_call(&s);
    for (int before = -1; before != s.tries && s.tries > 0;) {
        const problem start = *p;
        before = s.tries;
        shrink_kinds(&s);
        shrink_layouts(&s);
        shrink_sizes(&s);
        shrink_trees(&s);
        if (!memcmp(&start, p, sizeof start))
            break;
    }
}

/* ------------------------------------------------------------------------------------------------------- describing */

void problem_print(const problem *p, FILE *out)
{
    static const char *const masks[] = {"none", "expression", "dense", "lists", "and", "or", "not", "slice", "tensor"};
    static const char *const datas[] = {"normal",           "large", "equal", "NaN where nothing is seen",
                                        "NaN and infinity", "small", "uneven"};
    static char text[1 << 16];
    (void)fprintf(
        out,
        "  %s %s %s %s D %u Dv %u B %lld kv_batch %lld heads %lld/%lld q %lld kv %lld scale %g segments %u lse %d "
        "row_max %d sinks %d threads %d\n",
        p->direction == ATTUNE_FORWARD ? "forward" : "backward", attune_dtype_string(p->dtype),
        attune_dtype_string(p->kv_dtype), attune_dtype_string(p->o_dtype), p->head_dim, p->head_dim_v,
        (long long)p->batch, (long long)p->kv_batch, (long long)p->heads, (long long)p->kv_heads, (long long)p->q_len,
        (long long)p->kv_len, p->scale, p->segments, p->lse, p->row_max, p->sinks, (int)p->threads);
    (void)fprintf(out, "  mask: %s %ux%u %s\n", masks[p->mask], p->q_block, p->kv_block,
                  p->mask == MASK_TENSOR                    ? attune_dtype_string(p->tensor_dtype)
                  : p->mask == MASK_LISTS && p->lists_whole ? "of whole blocks"
                  : p->mask_by_hand                         ? "by hand"
                                                            : "");
    const tree *const trees[] = {&p->masks[0], &p->masks[1], &p->score};
    static const char *const names[] = {"mask a", "mask b", "score"};
    for (int i = 0; i < 3; i++)
        if (trees[i]->count && (i < 2 ? p->mask != MASK_NONE : p->has_score)) {
            tree_print(trees[i], text, sizeof text);
            (void)fprintf(out, "  %s: %s\n", names[i], text);
        }
    const attune_pass_options *o = &p->options;
    if (p->has_options)
        (void)fprintf(out,
                      "  options: kernel \"%s\" tile %ux%u %ux%u %ux%u warps %u stages %u split %u flex %d prescale %d "
                      "deterministic %d tma %d tanh %d, of %s\n",
                      o->kernel, o->block_m, o->block_n, o->block_m1, o->block_n1, o->block_m2, o->block_n2,
                      o->num_warps, o->num_stages, o->split_kv, (int)o->force_use_flex_attention, (int)o->prescale_qk,
                      (int)o->deterministic, (int)o->use_tma, (int)o->approximate_tanh,
                      p->options_of_pass ? "the pass" : "any");
    for (int i = 0; i < p->call_count; i++) {
        const call *c = &p->calls[i];
        (void)fprintf(out, "  call %d: B %lld q %lld kv %lld", i, (long long)c->batch, (long long)c->q_len,
                      (long long)c->kv_len);
        for (int s = 0; s < c->segment_count; s++)
            (void)fprintf(out, "%s%lld", s ? "+" : " = ", (long long)c->segment[s]);
        (void)fprintf(out, " data %s, mask longer by %lld x %lld, mutation %d\n", datas[c->data],
                      (long long)c->mask_more_q, (long long)c->mask_more_kv, c->mutation);
    }
}

static const char before[] =
    "/* Written by the random tester. Build: cc reproduction.c $(pkg-config --cflags --libs attune) -lm */\n"
    "#include <attune/attune.h>\n#include <math.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\n"
    "#define TRY(call) \\\n    do { \\\n        attune_status s_ = (call); \\\n        if (s_ != ATTUNE_OK) \\\n"
    "            return printf(\"%s: %s: %s\\n\", #call, attune_status_string(s_), attune_last_error()), 1; \\\n"
    "    } while (0)\n\n"
    "static double element(const attune_tensor *t, const unsigned char *bytes)\n{\n"
    "    float f = 0;\n    double d;\n    uint16_t h;\n    uint32_t word;\n"
    "    switch (t->dtype) {\n    case ATTUNE_F64:\n        memcpy(&d, bytes, 8);\n        return d;\n"
    "    case ATTUNE_F32:\n        memcpy(&f, bytes, 4);\n        return (double)f;\n"
    "    case ATTUNE_BF16:\n        memcpy(&h, bytes, 2);\n        word = (uint32_t)h << 16;\n        memcpy(&f, "
    "&word, 4);\n"
    "        return (double)f;\n"
    "    default:\n        memcpy(&h, bytes, 2);\n"
    "        d = (h >> 10 & 31) == 31 ? (h & 1023 ? NAN : INFINITY) : h >> 10 & 31 ? ldexp(1024 + (h & 1023), (h >> 10 "
    "& 31) - 25) "
    ": ldexp(h & 1023, -24);\n        return h >> 15 ? -d : d;\n    }\n}\n\n"
    "/* bound -1 = NaN */\nstatic int check(const char *name, const attune_tensor *t, long long flat, double wanted, "
    "double bound)\n{\n"
    "    unsigned char bytes[8];\n    long long at = 0, rest = flat;\n"
    "    for (uint32_t i = t->rank; i-- > 0; rest /= t->size[i])\n        at += rest % t->size[i] * t->stride[i];\n"
    "    size_t size = attune_dtype_size(t->dtype);\n"
    "    if (attune_buffer_read(t->buffer, t->offset + (uint64_t)(at * (long long)size), bytes, size) != ATTUNE_OK)\n"
    "        return printf(\"%s\\n\", attune_last_error()), 1;\n"
    "    double got = element(t, bytes);\n"
    "    int right = bound < 0 ? isnan(got) : isinf(wanted) ? got == wanted : fabs(got - wanted) <= bound;\n"
    "    printf(\"%s element %lld: %.9g, expected %.9g within %.3g%s\\n\", name, flat, got, wanted, bound, right ? "
    "\"\" : \": WRONG\");\n"
    "    return !right;\n}\n\n"
    "static void fill(attune_buffer *buffer, size_t size)\n{\n    unsigned char *bytes = malloc(size);\n    "
    "memset(bytes, 0xff, size);\n"
    "    (void)attune_buffer_write(buffer, 0, bytes, size);\n    free(bytes);\n}\n\n"
    "static void backwards(void *user, uint32_t count, void (*body)(void *, uint32_t), void *context)\n{\n"
    "    (void)user;\n    while (count > 0)\n        body(context, --count);\n}\n\n"
    "int main(int argc, char **argv)\n{\n    int failures = 0;\n    attune_instance *instance;\n    attune_device "
    "*device;\n"
    "    attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = 2};\n    (void)backwards;\n";

bool write_reproduction(runner *r, const problem *p, const char *path)
{
    finding f;
    r->code = fopen(path, "w");
    if (!r->code)
        return false;
    say(r,
        "%s%s    TRY(attune_instance_create(&desc, &instance));\n    TRY(attune_device_open(instance, argc > 1 ? "
        "argv[1] : \"%s\", &device));\n",
        before, p->threads == LOOPS_OWN ? "" : "    desc.cpu_threads = 4, desc.parallel_for.run = backwards;\n", r->id);
    (void)run_problem(r, p, &f);
    say(r,
        "    (void)fill, (void)check;\n    printf(\"%%s\\n\", failures ? \"found again\" : \"not found\");\n    return "
        "failures != 0;\n}\n/*\n%s: %s\n",
        f.kernel, f.what);
    problem_print(p, r->code);
    say(r, "*/\n");
    const bool ok = fclose(r->code) == 0;
    r->code = NULL;
    return ok;
}
