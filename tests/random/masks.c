/* SPDX-License-Identifier: MIT */
/* Masks through the public API, in every way that it has. */
#include "random/place.h"

#include <stdlib.h>
#include <string.h>

static void say_text(const runner *r, const char *text)
{
    for (; *text; text++)
        say(r, "%s%c", *text == '"' || *text == '\\' ? "\\" : "", *text);
}

static bool make_expr(runner *r, const tree *t, attune_expr_kind kind, const char *name, attune_expr **expr, finding *f)
{
    static char text[1 << 16];
    attune_symbol symbols[SYMBOLS];
    tree_print(t, text, sizeof text);
    say(r, "    attune_symbol %s_symbols[] = {", name);
    for (int i = 0; i < t->symbol_count; i++) {
        const tree_symbol *s = &t->symbols[i];
        symbols[i] = (attune_symbol){s->name, s->kind, s->dtype,
                                     s->kind == ATTUNE_SYMBOL_CAPTURE && s->declared_rank ? (uint32_t)s->rank : 0};
        say(r, "{\"%s\", %d, %d, %u}, ", s->name, (int)s->kind, (int)s->dtype, symbols[i].rank);
    }
    say(r, "{\"unused\", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0}};\n");
    say(r, "    attune_expr *%s;\n    TRY(attune_expr_create(instance, %d, \"", name, (int)kind);
    say_text(r, text);
    say(r, "\", %s_symbols, %d, &%s));\n", name, t->symbol_count, name);
    const attune_status status = attune_expr_create(r->instance, kind, text, symbols, (uint32_t)t->symbol_count, expr);
    return status == ATTUNE_OK ||
           fail(f, "expr", "attune_expr_create: %s: %s: %s", attune_status_string(status), text, attune_last_error());
}

bool make_expressions(runner *r, const problem *p, attune_expr *exprs[3], finding *f)
{
    static const char *const names[] = {"mask_a", "mask_b", "score"};
    const tree *const trees[] = {&p->masks[0], &p->masks[1], &p->score};
    for (int i = 0; i < 3; i++)
        if (trees[i]->count &&
            !make_expr(r, trees[i], i < 2 ? ATTUNE_EXPR_MASK : ATTUNE_EXPR_SCORE, names[i], &exprs[i], f))
            return false;
    return true;
}

void bind_tree(runner *r, const tree *t, const binding *bindings, const layout *layouts, const char *name,
               host_bindings *b)
{
    *b = (host_bindings){.capture_count = 0};
    char captures[256] = "", parameters[256] = "";
    for (int i = 0; i < t->symbol_count; i++) {
        const tree_symbol *s = &t->symbols[i];
        char text[64];
        if (s->kind == ATTUNE_SYMBOL_PARAMETER) {
            (void)snprintf(text, sizeof text, "{\"%s\", %.17g}, ", s->name, bindings[i].number);
            strcat(parameters, text);
            b->parameters[b->parameter_count++] = (attune_parameter){s->name, bindings[i].number};
            continue;
        }
        attune_host_capture *c = &b->captures[b->capture_count];
        host_array(r, s->name, s->dtype, s->rank, bindings[i].size, &layouts[i], bindings[i].values,
                   &b->memory[b->capture_count++], &c->array);
        c->name = s->name;
        (void)snprintf(text, sizeof text, "%s, ", s->name);
        strcat(captures, text);
    }
    say(r, "    attune_host_capture %s_captures[] = {%s{NULL, {NULL, 0, 0, {0}, {0}}}};\n", name, captures);
    say(r, "    attune_parameter %s_parameters[] = {%s{NULL, 0}};\n    (void)%s_captures, (void)%s_parameters;\n", name,
        parameters, name, name);
}

void unbind(host_bindings *b)
{
    for (uint32_t i = 0; i < b->capture_count; i++)
        free(b->memory[i]);
}

static attune_mask_desc describe(runner *r, const problem *p, const call *c, int segment)
{
    const bool whole = !c->segment_count || c->segment_alone;
    const attune_mask_desc desc = {.struct_size = sizeof desc,
                                   .q_block = p->q_block,
                                   .kv_block = p->kv_block,
                                   .batch = mask_batch(p, c),
                                   .heads = mask_heads(p, c),
                                   .kv_heads = mask_kv_heads(p, c),
                                   .q_len = mask_q_len(p, c),
                                   .kv_len = mask_kv_len(p, c, segment),
                                   .kv_start = whole ? 0 : segment_start(c, segment),
                                   .kv_total = whole ? 0 : c->kv_len};
    say(r,
        "    attune_mask_desc desc%d = {.struct_size = sizeof desc%d, .q_block = %u, .kv_block = %u, .batch = %lld, "
        ".heads = "
        "%lld, .kv_heads = %lld, .q_len = %lld, .kv_len = %lld, .kv_start = %lld, .kv_total = %lld};\n",
        segment, segment, desc.q_block, desc.kv_block, (long long)desc.batch, (long long)desc.heads,
        (long long)desc.kv_heads, (long long)desc.q_len, (long long)desc.kv_len, (long long)desc.kv_start,
        (long long)desc.kv_total);
    return desc;
}

/* A mask for the largest call of the plan. */
static attune_status tensor_mask(runner *r, const problem *p, const call_data *d, attune_mask_desc *desc, int segment,
                                 attune_mask **mask)
{
    desc->q_len = p->q_len;
    desc->kv_len = p->kv_len;
    say(r,
        "    desc%d.q_len = %lld, desc%d.kv_len = %lld;\n    TRY(attune_mask_create_tensor(device, &desc%d, %d, %lld, "
        "%lld, &mask%d));\n",
        segment, (long long)desc->q_len, segment, (long long)desc->kv_len, segment, (int)p->tensor_dtype,
        (long long)d->lists_batch, (long long)d->lists_heads, segment);
    return attune_mask_create_tensor(r->device, desc, p->tensor_dtype, d->lists_batch, d->lists_heads, mask);
}

static attune_status dense_mask(runner *r, const call_data *d, const attune_mask_desc *desc, int segment,
                                attune_mask **mask)
{
    const attune_array array = {.data = d->dense[segment],
                                .dtype = ATTUNE_U8,
                                .rank = 4,
                                .size = {d->lists_batch, d->lists_heads, desc->q_len, desc->kv_len}};
    const int64_t count = array.size[0] * array.size[1] * array.size[2] * array.size[3];
    say(r, "    static uint8_t dense%d[] = {", segment);
    for (int64_t i = 0; r->code && i < count; i++)
        say(r, "%d,", d->dense[segment][i]);
    say(r, "};\n    attune_array array%d = {dense%d, ATTUNE_U8, 4, {%lld, %lld, %lld, %lld}, {0}};\n", segment, segment,
        (long long)array.size[0], (long long)array.size[1], (long long)array.size[2], (long long)array.size[3]);
    say(r, "    TRY(attune_mask_create_dense(instance, &desc%d, &array%d, &mask%d));\n", segment, segment, segment);
    return attune_mask_create_dense(r->instance, desc, &array, mask);
}

/* One of the two kinds of blocks, in compressed rows. */
typedef struct rows {
    int32_t *count, *index;
    int64_t *offset;
} rows;

static rows rows_of(const runner *r, const call_data *d, int segment, uint8_t class, const char *name)
{
    const int64_t count = d->lists_batch * d->lists_heads * d->q_blocks, columns = d->kv_blocks[segment];
    rows list = {calloc((size_t)count, sizeof *list.count), calloc((size_t)(count * columns), sizeof *list.index),
                 calloc((size_t)count + 1, sizeof *list.offset)};
    if (!list.count || !list.index || !list.offset)
        abort();
    int64_t used = 0;
    for (int64_t i = 0; i < count; i++) {
        list.offset[i] = used;
        for (int64_t j = 0; j < columns; j++)
            if (d->lists[segment][i * columns + j] == class) {
                list.count[i]++;
                list.index[used++] = (int32_t)j;
            }
    }
    list.offset[count] = used;
    say(r, "    static int32_t %s_count%d[] = {", name, segment);
    for (int64_t i = 0; r->code && i < count; i++)
        say(r, "%d, ", list.count[i]);
    say(r, "}, %s_index%d[] = {", name, segment);
    for (int64_t i = 0; r->code && i < used; i++)
        say(r, "%d, ", list.index[i]);
    say(r, "%s};\n    static int64_t %s_offset%d[] = {", used ? "" : "0", name, segment);
    for (int64_t i = 0; r->code && i <= count; i++)
        say(r, "%lld, ", (long long)list.offset[i]);
    say(r, "};\n    (void)%s_offset%d;\n", name, segment);
    return list;
}

static attune_status lists_mask(runner *r, const call *c, const call_data *d, const attune_mask_desc *desc, int segment,
                                const attune_expr *expr, const host_bindings *b, attune_mask **mask)
{
    rows partial = rows_of(r, d, segment, 1, "partial"), full = rows_of(r, d, segment, 2, "full");
    const attune_mask_lists lists = {.struct_size = sizeof lists,
                                     .batch = d->lists_batch,
                                     .heads = d->lists_heads,
                                     .kv_num_blocks = partial.count,
                                     .kv_offsets = c->lists_offsets ? partial.offset : NULL,
                                     .kv_indices = partial.index,
                                     .full_kv_num_blocks = full.count,
                                     .full_kv_offsets = c->lists_offsets ? full.offset : NULL,
                                     .full_kv_indices = full.index};
    say(r,
        "    attune_mask_lists lists%d = {.struct_size = sizeof lists%d, .batch = %lld, .heads = %lld, .kv_num_blocks "
        "= "
        "partial_count%d, .kv_indices = partial_index%d, .full_kv_num_blocks = full_count%d, .full_kv_indices = "
        "full_index%d};\n",
        segment, segment, (long long)lists.batch, (long long)lists.heads, segment, segment, segment, segment);
    if (c->lists_offsets)
        say(r, "    lists%d.kv_offsets = partial_offset%d, lists%d.full_kv_offsets = full_offset%d;\n", segment,
            segment, segment, segment);
    say(r,
        "    TRY(attune_mask_create_lists(instance, &desc%d, &lists%d, %s, mask_a_captures, %u, mask_a_parameters, "
        "%u, "
        "&mask%d));\n",
        segment, segment, expr ? "mask_a" : "NULL", b->capture_count, b->parameter_count, segment);
    const attune_status status = attune_mask_create_lists(r->instance, desc, &lists, expr, b->captures,
                                                          b->capture_count, b->parameters, b->parameter_count, mask);
    rows *both[] = {&partial, &full};
    for (int i = 0; i < 2; i++) {
        free(both[i]->count);
        free(both[i]->index);
        free(both[i]->offset);
    }
    return status;
}

static attune_status expr_mask(runner *r, const attune_mask_desc *desc, int segment, const attune_expr *expr,
                               const char *name, const host_bindings *b, const char *into, attune_mask **mask)
{
    say(r, "    TRY(attune_mask_create(instance, &desc%d, %s, %s_captures, %u, %s_parameters, %u, &%s%d));\n", segment,
        name, name, b->capture_count, name, b->parameter_count, into, segment);
    return attune_mask_create(r->instance, desc, expr, b->captures, b->capture_count, b->parameters, b->parameter_count,
                              mask);
}

static attune_status combined(runner *r, const problem *p, const call *c, int segment, attune_mask *a, attune_mask *b,
                              attune_mask **mask)
{
    const attune_mask_range range = {.struct_size = sizeof range,
                                     .batch0 = c->slice_batch0,
                                     .batch = c->batch,
                                     .head0 = c->slice_heads0 * (p->heads / p->kv_heads),
                                     .heads = p->heads,
                                     .q_block0 = c->slice_block0};
    const attune_mask_op op = p->mask == MASK_AND  ? ATTUNE_MASK_AND
                              : p->mask == MASK_OR ? ATTUNE_MASK_OR
                                                   : ATTUNE_MASK_NOT;
    if (p->mask != MASK_SLICE && c->seed % 2) {
        say(r, "    TRY(attune_mask_combine(%d, first%d, second%d, NULL, &mask%d));\n", (int)op, segment, segment,
            segment);
        return attune_mask_combine(op, a, b, NULL, mask);
    }
    switch (p->mask) {
    case MASK_AND:
        say(r, "    TRY(attune_mask_and(first%d, second%d, &mask%d));\n", segment, segment, segment);
        return attune_mask_and(a, b, mask);
    case MASK_OR:
        say(r, "    TRY(attune_mask_or(first%d, second%d, &mask%d));\n", segment, segment, segment);
        return attune_mask_or(a, b, mask);
    case MASK_NOT:
        say(r, "    TRY(attune_mask_not(first%d, &mask%d));\n", segment, segment);
        return attune_mask_not(a, mask);
    default:
        say(r,
            "    attune_mask_range range = {.struct_size = sizeof range, .batch0 = %lld, .batch = %lld, .head0 = %lld, "
            ".heads = "
            "%lld, .q_block0 = %lld};\n    TRY(attune_mask_slice(first%d, &range, &mask%d));\n",
            (long long)range.batch0, (long long)range.batch, (long long)range.head0, (long long)range.heads,
            (long long)range.q_block0, segment, segment);
        return attune_mask_slice(a, &range, mask);
    }
}

bool make_mask(runner *r, const problem *p, const call *c, const call_data *d, int segment, attune_expr *const exprs[3],
               attune_mask **mask, finding *f)
{
    static const char *const names[] = {"none", "create", "create_dense", "create_lists", "and",
                                        "or",   "not",    "slice",        "create_tensor"};
    host_bindings b[2];
    attune_mask *first = NULL, *second = NULL;
    attune_status status;
    bool checked = true;
    const int n = segment < 0 ? 0 : segment;
    /* The names of a segment's captures are those of the first. */
    FILE *code = r->code;
    if (n)
        r->code = NULL;
    for (int i = 0; i < 2; i++)
        bind_tree(r, &p->masks[i], d->mask[i], c->host + i * SYMBOLS, i ? "mask_b" : "mask_a", &b[i]);
    r->code = code;
    attune_mask_desc desc = describe(r, p, c, n);
    if (c->seed % 8 == 0 && exprs[0] && p->mask != MASK_LISTS && !check_budget(r, c, desc, exprs[0], &b[0], f)) {
        unbind(&b[0]);
        unbind(&b[1]);
        return false;
    }
    say(r, "    attune_mask *mask%d, *first%d = NULL, *second%d = NULL;\n    (void)first%d, (void)second%d;\n", n, n, n,
        n, n);
    if (p->mask == MASK_DENSE) {
        status = dense_mask(r, d, &desc, n, mask);
    } else if (p->mask == MASK_TENSOR) {
        status = tensor_mask(r, p, d, &desc, n, mask);
    } else if (p->mask == MASK_LISTS) {
        status = lists_mask(r, c, d, &desc, n, exprs[0], &b[0], mask);
    } else if (p->mask == MASK_EXPR) {
        status = expr_mask(r, &desc, n, exprs[0], "mask_a", &b[0], "mask", mask);
    } else {
        status = expr_mask(r, &desc, n, exprs[0], "mask_a", &b[0], "first", &first);
        if (status == ATTUNE_OK && desc.kv_total)
            checked = check_segments(r, c, desc, exprs[0], &b[0], first, f);
        if (c->segment_mixed) {
            say(r, "    desc%d.kv_start = desc%d.kv_total = 0;\n", n, n);
            desc.kv_start = desc.kv_total = 0;
        }
        if (status == ATTUNE_OK && exprs[1])
            status = expr_mask(r, &desc, n, exprs[1], "mask_b", &b[1], "second", &second);
        if (status == ATTUNE_OK)
            status = combined(r, p, c, n, first, second, mask);
    }
    if (checked && status == ATTUNE_OK && p->mask != MASK_TENSOR && c->seed % 4 == 1)
        checked = check_made(r, p, c, d, n, &desc, exprs[0], (attune_mask *[]){first, second}, *mask, f);
    attune_mask_destroy(first);
    attune_mask_destroy(second);
    unbind(&b[0]);
    unbind(&b[1]);
    if (!checked)
        return false;
    if (status == ATTUNE_OK && p->mask != MASK_TENSOR) {
        say(r, "    TRY(attune_mask_upload(mask%d, device));\n", n);
        status = attune_mask_upload(*mask, r->device);
    }
    if (status == ATTUNE_OK)
        return check_mask(p, c, d, n, *mask, f);
    return fail(f, "mask", "mask (%s): %s: %s", names[p->mask], attune_status_string(status), attune_last_error());
}
