/* SPDX-License-Identifier: MIT */
/* Derivatives as C: one function each, with only the nodes that it needs. */
#include <stdio.h>

#include "expr/gradient.h"
#include "expr/print.h"

/* Declares the values that the nodes in `roots` need. */
static void add_values(const attune_expr *expr, const uint32_t *roots, uint32_t count, attune__text *text)
{
    attune__interval bounds[ATTUNE_EXPR_MAX_NODES];
    bool needed[ATTUNE_EXPR_MAX_NODES];
    attune__ctext_bounds(expr, bounds);
    attune__ctext_needed(expr, roots, count, NULL, needed);
    for (uint32_t n = 0; n < expr->node_count; n++)
        if (needed[n])
            attune__ctext_declare(expr, n, bounds, text);
}

static void begin(const char *type, const char *name, attune__text *text)
{
    attune__text_add(text,
                     "ATTUNE_FUNCTION %s %s(int b, int h, int q, int kv, int h_kv, int q_len, int kv_len, "
                     "float score ATTUNE_SYMBOLS)\n{\n"
                     "    (void)b, (void)h, (void)q, (void)kv, (void)h_kv, (void)q_len, (void)kv_len, (void)score;\n",
                     type, name);
}

static void add_value(const attune_expr *expr, uint32_t n, const char *name, attune__text *text)
{
    char root[ATTUNE__CTEXT_NAME];
    begin("float", name, text);
    add_values(expr, &n, 1, text);
    attune__text_add(text, "    return %s;\n}\n", attune__ctext_operand(expr, n, root));
}

/* at: the function that has the index, followed by the capture's rank. */
static void add_index(const attune_expr *expr, const attune__node *read, const char *name, const char *at,
                      attune__text *text)
{
    char index[ATTUNE__CTEXT_NAME];
    begin("attune_index", name, text);
    add_values(expr, read->arg, read->arg_count, text);
    attune__text_add(text, "    return %s_%u(ATTUNE_CAPTURE(%d)", at, read->arg_count, read->value.i);
    for (uint32_t i = 0; i < read->arg_count; i++)
        attune__text_add(text, ", %s", attune__ctext_operand(expr, read->arg[i], index));
    attune__text_add(text, ");\n}\n");
}

static bool is_var(const attune_expr *expr, uint32_t n, attune__var var)
{
    return expr->nodes[n].op == ATTUNE__OP_VAR && expr->nodes[n].value.i == (int32_t)var;
}

/* Marks the nodes that have one value for all pairs of a head with the same q - kv. */
static void find_diagonal_nodes(const attune_expr *expr, bool diagonal[ATTUNE_EXPR_MAX_NODES])
{
    for (uint32_t n = 0; n < expr->node_count; n++) {
        const attune__node *node = &expr->nodes[n];
        const uint32_t *arg = node->arg;
        const bool compares = node->op >= ATTUNE__OP_EQ && node->op <= ATTUNE__OP_LE; /* the sign of q - kv */
        if ((node->op == ATTUNE__OP_SUB || compares) &&
            ((is_var(expr, arg[0], ATTUNE__VAR_Q) && is_var(expr, arg[1], ATTUNE__VAR_KV)) ||
             (is_var(expr, arg[0], ATTUNE__VAR_KV) && is_var(expr, arg[1], ATTUNE__VAR_Q)))) {
            diagonal[n] = true;
            continue;
        }
        diagonal[n] = !is_var(expr, n, ATTUNE__VAR_Q) && !is_var(expr, n, ATTUNE__VAR_KV);
        for (uint32_t i = 0; i < node->arg_count; i++)
            diagonal[n] = diagonal[n] && diagonal[arg[i]];
    }
}

static int sharing(const attune_expr *expr, const attune__node *read, const bool diagonal[ATTUNE_EXPR_MAX_NODES])
{
    const uint16_t row = 1u << ATTUNE__VAR_Q, key = 1u << ATTUNE__VAR_KV;
    uint16_t uses = 0;
    bool distance = true;
    for (uint32_t i = 0; i < read->arg_count; i++) {
        uses = (uint16_t)(uses | expr->nodes[read->arg[i]].uses);
        distance = distance && diagonal[read->arg[i]];
    }
    if (uses & 1u << ATTUNE__VAR_SCORE)
        return ATTUNE__READ_PAIR;
    return uses & row && uses & key ? (distance ? ATTUNE__READ_DIAGONAL : ATTUNE__READ_PAIR)
           : uses & row             ? ATTUNE__READ_ROW
           : uses & key             ? ATTUNE__READ_KEY
                                    : ATTUNE__READ_ONE;
}

uint32_t attune__ctext_pair_captures(const attune_expr *expr)
{
    bool diagonal[ATTUNE_EXPR_MAX_NODES];
    uint32_t captures = 0;
    find_diagonal_nodes(expr, diagonal);
    for (uint32_t n = 0; n < expr->node_count; n++)
        if (expr->nodes[n].op == ATTUNE__OP_CAPTURE && sharing(expr, &expr->nodes[n], diagonal) == ATTUNE__READ_PAIR)
            captures |= 1u << expr->nodes[n].value.i;
    return captures;
}

uint32_t attune__ctext_ordered_captures(const attune_expr *expr)
{
    bool diagonal[ATTUNE_EXPR_MAX_NODES];
    uint32_t others = 0;
    find_diagonal_nodes(expr, diagonal);
    for (uint32_t n = 0; n < expr->node_count; n++)
        if (expr->nodes[n].op == ATTUNE__OP_CAPTURE &&
            !(sharing(expr, &expr->nodes[n], diagonal) == ATTUNE__READ_PAIR &&
              attune__expr_reads_keys_in_order(expr, n)))
            others |= 1u << expr->nodes[n].value.i;
    return attune__ctext_pair_captures(expr) & ~others;
}

void attune__ctext_gradient(const attune__gradient *gradient, attune__text *text)
{
    const attune_expr *expr = gradient->expr;
    bool diagonal[ATTUNE_EXPR_MAX_NODES];
    char name[48];
    find_diagonal_nodes(expr, diagonal);
    add_value(expr, gradient->score, "attune_score_slope", text);
    for (uint32_t i = 0; i < gradient->read_count; i++) {
        snprintf(name, sizeof name, "attune_capture_read_%u", i);
        add_value(expr, gradient->reads[i].factor, name, text);
        snprintf(name, sizeof name, "attune_capture_read_%u_at", i);
        add_index(expr, &expr->nodes[gradient->reads[i].capture], name, "attune_at", text);
    }
    attune__text_add(text, "#ifdef ATTUNE_HAVE_PADDED_ROWS\n");
    for (uint32_t i = 0; i < gradient->read_count; i++) {
        snprintf(name, sizeof name, "attune_capture_read_%u_padded_at", i);
        add_index(expr, &expr->nodes[gradient->reads[i].capture], name, "attune_padded_at", text);
    }
    attune__text_add(text, "#endif\n");
    attune__text_add(text, "#define ATTUNE_CAPTURE_READS(X)");
    for (uint32_t i = 0; i < gradient->read_count; i++) {
        const attune__node *read = &expr->nodes[gradient->reads[i].capture];
        attune__text_add(text, " X(%u, %d, %d)", i, read->value.i, sharing(expr, read, diagonal));
    }
    attune__text_add(text, "\n#define ATTUNE_CAPTURE_READS_IN_ORDER(i) (0");
    for (uint32_t i = 0; i < gradient->read_count; i++)
        if (attune__expr_reads_keys_in_order(expr, gradient->reads[i].capture))
            attune__text_add(text, " || (i) == %u", i);
    attune__text_add(text, ")\n#define ATTUNE_CAPTURE_GRADIENTS_USE_SCORE %d\n",
                     (attune__gradient_uses(gradient) & 1u << ATTUNE__VAR_SCORE) != 0);
}
