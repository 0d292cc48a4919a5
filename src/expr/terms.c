/* SPDX-License-Identifier: MIT */
/*
 * Terms: parts of an expression that read captures or take many instructions, and have one value per key, or one per
 * row. A kernel computes them once for each key and each row of a tile, and only the remainder for each pair:
 * `doc[q] == doc[kv]` is then one comparison, `score + table[doc[kv]]` one addition, and `q / side == kv / side` no
 * division.
 *
 * Terms are as large as possible, since any of them is stored in one 32-bit word.
 */
#include "expr/expr.h"

#include "expr/print.h"

#define BIT(var) (UINT16_C(1) << (var))
#define KEY      BIT(ATTUNE__VAR_KV)
#define ROW      BIT(ATTUNE__VAR_Q)
#define SCORE    BIT(ATTUNE__VAR_SCORE)

typedef enum kind { PAIR, OF_KEY, OF_ROW } kind;

/* The least instructions without reads that a term saves: an element of shared memory is read instead. */
#define LEAST_WEIGHT 12

static void add_term(uint32_t terms[ATTUNE__TERMS], uint32_t *count, uint32_t n)
{
    if (*count < ATTUNE__TERMS)
        terms[(*count)++] = n;
}

/* Whether a node is a quotient or remainder by a power of two. */
static bool is_shift(const attune_expr *expr, uint32_t n)
{
    const attune__node *node = &expr->nodes[n], *by = &expr->nodes[node->arg[1]];
    return (node->op == ATTUNE__OP_DIV || node->op == ATTUNE__OP_MOD) && node->type == ATTUNE__INT &&
           by->op == ATTUNE__OP_CONST && by->value.i > 0 && !(by->value.i & (by->value.i - 1));
}

/* The parts that read a capture, and those that are worth a term: these, and parts of many instructions. */
static void find_parts(const attune_expr *expr, bool captures[ATTUNE_EXPR_MAX_NODES], bool worth[ATTUNE_EXPR_MAX_NODES])
{
    uint32_t weight[ATTUNE_EXPR_MAX_NODES];
    for (uint32_t n = 0; n < expr->node_count; n++) {
        captures[n] = expr->nodes[n].op == ATTUNE__OP_CAPTURE;
        weight[n] = is_shift(expr, n) ? 1 : attune__node_weight(expr, n, ATTUNE__FORM_FAST);
        for (uint32_t i = 0; i < expr->nodes[n].arg_count; i++) {
            const uint32_t of = expr->nodes[n].arg[i];
            captures[n] = captures[n] || captures[of];
            weight[n] = weight[of] < LEAST_WEIGHT ? weight[n] + weight[of] : LEAST_WEIGHT;
        }
        worth[n] = captures[n] || weight[n] >= LEAST_WEIGHT;
    }
}

static kind kind_of(const attune__node *node, uint16_t without)
{
    if (node->uses & SCORE)
        return PAIR;
    if (!(node->uses & KEY))
        return OF_ROW;
    return node->uses & (ROW | without) ? PAIR : OF_KEY;
}

bool attune__expr_reads_keys_in_order(const attune_expr *expr, uint32_t n)
{
    const attune__node *node = &expr->nodes[n];
    if (node->op != ATTUNE__OP_CAPTURE)
        return false;
    const attune__node *last = &expr->nodes[node->arg[node->arg_count - 1]];
    if (last->op != ATTUNE__OP_VAR || last->value.i != ATTUNE__VAR_KV)
        return false;
    for (uint32_t i = 0; i + 1 < node->arg_count; i++)
        if (expr->nodes[node->arg[i]].uses & (KEY | SCORE))
            return false;
    return true;
}

/* The bytes of an element of a capture whose rows are contiguous in kv; 0 for other nodes. */
static uint32_t row_element(const attune_expr *expr, uint32_t n)
{
    const attune__node *node = &expr->nodes[n];
    if (!attune__expr_reads_keys_in_order(expr, n) || kind_of(node, 0) != PAIR)
        return 0;
    switch (expr->symbols[node->value.i].dtype) {
    case ATTUNE_F32:
    case ATTUNE_I32:
        return 4;
    case ATTUNE_F16:
    case ATTUNE_BF16:
        return 2;
    default:
        return 0;
    }
}

static attune__terms find_terms(const attune_expr *expr, uint32_t root, uint16_t without, bool tile)
{
    attune__terms terms = {0};
    if (expr->ragged) /* kernels over a cache evaluate pairs */
        return terms;
    bool captures[ATTUNE_EXPR_MAX_NODES], worth[ATTUNE_EXPR_MAX_NODES], needed[ATTUNE_EXPR_MAX_NODES] = {false};
    find_parts(expr, captures, worth);
    needed[root] = true;
    /* Users come after their operands: in descending order, the first node that is not per pair is the largest. */
    for (uint32_t n = expr->node_count; n-- > 0;) {
        if (!needed[n])
            continue;
        const kind k = worth[n] ? kind_of(&expr->nodes[n], without) : PAIR;
        if (k == OF_KEY && !captures[n] && terms.key_count < ATTUNE__TERMS)
            terms.computed |= 1u << terms.key_count;
        if (k == OF_KEY)
            add_term(terms.keys, &terms.key_count, n);
        else if (k == OF_ROW)
            add_term(terms.rows, &terms.row_count, n);
        else if (tile && !terms.tile_bytes && row_element(expr, n))
            terms.tile = n, terms.tile_bytes = row_element(expr, n);
        else
            for (uint32_t i = 0; i < expr->nodes[n].arg_count; i++)
                needed[expr->nodes[n].arg[i]] = true;
    }
    return terms;
}

attune__terms attune__expr_terms(const attune_expr *expr, uint32_t root, uint16_t without)
{
    return find_terms(expr, root, without, false);
}

attune__terms attune__expr_terms_with_tile(const attune_expr *expr, uint32_t root)
{
    return find_terms(expr, root, 0, true);
}

attune__terms attune__expr_terms_with_keys(const attune_expr *expr, uint32_t root, uint16_t without)
{
    attune__terms terms = attune__expr_terms(expr, root, without);
    if (!terms.key_count)
        terms = (attune__terms){0};
    return terms;
}

bool attune__expr_reads_pairs(const attune_expr *expr)
{
    return attune__expr_reads_beside(expr, NULL);
}

bool attune__expr_reads_beside(const attune_expr *expr, const attune__terms *terms)
{
    bool reads = false;
    for (uint32_t n = 0; n < expr->node_count; n++)
        reads = reads || (expr->nodes[n].op == ATTUNE__OP_CAPTURE && kind_of(&expr->nodes[n], 0) == PAIR &&
                          !(terms && terms->tile_bytes && terms->tile == n));
    return reads;
}

/* ------------------------------------------------------------------------------------------------------------ text */

/* void NAME_key_terms(..., int *key ATTUNE_SYMBOLS), or rows. */
static void add_function(const attune_expr *expr, const char *name, const char *what, const char *var,
                         const uint32_t *terms, uint32_t count, attune__text *text)
{
    attune__interval bounds[ATTUNE_EXPR_MAX_NODES];
    bool needed[ATTUNE_EXPR_MAX_NODES];
    attune__ctext_bounds(expr, bounds);
    attune__ctext_needed(expr, terms, count, NULL, needed);
    attune__text_add(text,
                     "ATTUNE_FUNCTION void %s_%s_terms(int b, int h, int %s, int h_kv, int q_len, int kv_len, int *%s "
                     "ATTUNE_SYMBOLS)\n{\n    (void)b, (void)h, (void)%s, (void)h_kv, (void)q_len, (void)kv_len, "
                     "(void)%s;\n",
                     name, what, var, what, var, what);
    for (uint32_t n = 0; n < expr->node_count; n++)
        if (needed[n])
            attune__ctext_declare(expr, n, bounds, text);
    for (uint32_t i = 0; i < count; i++) {
        char value[ATTUNE__CTEXT_NAME];
        attune__text_add(text, "    %s[%u] = ATTUNE_BITS_%s(%s);\n", what, i,
                         expr->nodes[terms[i]].type == ATTUNE__FLOAT ? "F32" : "I32",
                         attune__ctext_operand(expr, terms[i], value));
    }
    attune__text_add(text, "}\n");
}

/* The functions that say where the rows of a tile of a capture are, and what the bits of an element mean. */
static void add_tile(const attune_expr *expr, const char *name, const attune__terms *terms, attune__text *text)
{
    const attune__node *node = &expr->nodes[terms->tile];
    const attune_dtype dtype = expr->symbols[node->value.i].dtype;
    attune__interval bounds[ATTUNE_EXPR_MAX_NODES];
    bool needed[ATTUNE_EXPR_MAX_NODES];
    char value[ATTUNE__CTEXT_NAME];
    attune__ctext_bounds(expr, bounds);
    attune__ctext_needed(expr, node->arg, node->arg_count - 1u, NULL, needed);
    attune__text_add(text,
                     "ATTUNE_FUNCTION attune_capture_row %s_tile_row(int b, int h, int q, int h_kv, int q_len, int "
                     "kv_len ATTUNE_SYMBOLS)\n{\n    (void)b, (void)h, (void)q, (void)h_kv, (void)q_len, "
                     "(void)kv_len;\n",
                     name);
    for (uint32_t n = 0; n < expr->node_count; n++)
        if (needed[n])
            attune__ctext_declare(expr, n, bounds, text);
    attune__text_add(text, "    const int at[] = {");
    for (uint32_t i = 0; i + 1 < node->arg_count; i++)
        attune__text_add(text, "%s, ", attune__ctext_operand(expr, node->arg[i], value));
    attune__text_add(text,
                     "0};\n    return attune_row_of<%u, %u>(ATTUNE_CAPTURE(%d), at);\n}\n"
                     "ATTUNE_FUNCTION bool %s_tile_aligned(const attune_cuda_symbol *symbols)\n{\n"
                     "    return attune_rows_aligned<%u, %u>(ATTUNE_CAPTURE(%d));\n}\n"
                     "ATTUNE_FUNCTION long long %s_tile_stride(const attune_cuda_symbol *symbols)\n{\n"
                     "    return attune_row_stride<%u, %u>(ATTUNE_CAPTURE(%d));\n}\n",
                     node->arg_count, terms->tile_bytes, node->value.i, name, node->arg_count, terms->tile_bytes,
                     node->value.i, name, node->arg_count, terms->tile_bytes, node->value.i);
    attune__text_add(text, "ATTUNE_FUNCTION int %s_tile_value(unsigned bits)\n{\n    return %s;\n}\n", name,
                     dtype == ATTUNE_BF16  ? "(int)(bits << 16)"
                     : dtype == ATTUNE_F16 ? "__float_as_int(half_to_float((unsigned short)bits))"
                                           : "(int)bits");
}

void attune__ctext_terms(const attune_expr *expr, const char *name, const attune__terms *terms, attune__text *text)
{
    add_function(expr, name, "key", "kv", terms->keys, terms->key_count, text);
    add_function(expr, name, "row", "q", terms->rows, terms->row_count, text);
    if (terms->tile_bytes)
        add_tile(expr, name, terms, text);
}
