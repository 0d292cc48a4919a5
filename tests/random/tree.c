/* SPDX-License-Identifier: MIT */
/* Expressions as trees: printed as attune reads them, and evaluated by the text of docs/expressions.md. */
#include "random/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool tree_uses(const tree *t, node_op op)
{
    for (int i = 0; i < t->count; i++)
        if (t->nodes[i].op == op)
            return true;
    return false;
}

bool tree_uses_symbol(const tree *t, int symbol)
{
    for (int i = 0; i < t->count; i++)
        if ((t->nodes[i].op == OP_CAPTURE || t->nodes[i].op == OP_PARAMETER) && t->nodes[i].i == symbol)
            return true;
    return false;
}

/* --------------------------------------------------------------------------------------------------------- printing */

typedef struct writer {
    char *text;
    size_t size, used;
} writer;

static void put(writer *w, const char *text)
{
    const size_t length = strlen(text);
    if (w->used + length + 1 > w->size)
        return;
    memcpy(w->text + w->used, text, length + 1);
    w->used += length;
}

/* How tightly an operator binds: a choice 1, || 2, && 3, == 4, < 5, + 6, * 7, signs 8, all else 9. */
static int tightness(node_op op)
{
    switch (op) {
    case OP_CHOICE:
        return 1;
    case OP_OR:
        return 2;
    case OP_AND:
        return 3;
    case OP_EQ:
    case OP_NE:
        return 4;
    case OP_LT:
    case OP_LE:
    case OP_GT:
    case OP_GE:
        return 5;
    case OP_ADD:
    case OP_SUB:
        return 6;
    case OP_MUL:
    case OP_DIV:
    case OP_MOD:
        return 7;
    case OP_NEG:
    case OP_NOT:
        return 8;
    default:
        return 9;
    }
}

static const char *name_of(node_op op)
{
    static const char *const names[] = {
        [OP_B] = "b",           [OP_H] = "h",         [OP_Q] = "q",
        [OP_KV] = "kv",         [OP_H_KV] = "h_kv",   [OP_Q_LEN] = "q_len",
        [OP_KV_LEN] = "kv_len", [OP_ROW] = "row",     [OP_SCORE] = "score",
        [OP_NEG] = "-",         [OP_NOT] = "!",       [OP_ADD] = " + ",
        [OP_SUB] = " - ",       [OP_MUL] = " * ",     [OP_DIV] = " / ",
        [OP_MOD] = " % ",       [OP_LT] = " < ",      [OP_LE] = " <= ",
        [OP_GT] = " > ",        [OP_GE] = " >= ",     [OP_EQ] = " == ",
        [OP_NE] = " != ",       [OP_AND] = " && ",    [OP_OR] = " || ",
        [OP_SELECT] = "select", [OP_ABS] = "abs",     [OP_MIN] = "min",
        [OP_MAX] = "max",       [OP_CLAMP] = "clamp", [OP_FLOOR] = "floor",
        [OP_CEIL] = "ceil",     [OP_EXP] = "exp",     [OP_EXP2] = "exp2",
        [OP_LOG] = "log",       [OP_LOG2] = "log2",   [OP_SQRT] = "sqrt",
        [OP_RSQRT] = "rsqrt",   [OP_TANH] = "tanh",   [OP_SIGMOID] = "sigmoid",
        [OP_SIN] = "sin",       [OP_COS] = "cos",     [OP_POW] = "pow",
    };
    return names[op];
}

static void print_node(const tree *t, int at, int least, writer *w);

/* Whether the language would take an operation of floats for one of whole numbers: all that it is of was converted. */
static bool looks_whole(const tree *t, const node *n)
{
    const int first = n->op == OP_CHOICE || n->op == OP_SELECT;
    bool whole = n->op >= OP_NEG && n->op <= OP_CEIL && n->count > first;
    for (int i = first; i < n->count; i++)
        whole &= t->nodes[n->kid[i]].op == OP_CONVERT;
    return whole;
}

/* The i-th operand. One of those that look whole is made a float in words. */
static void print_kid(const tree *t, const node *n, int i, int least, writer *w)
{
    const bool words = i == (n->op == OP_CHOICE || n->op == OP_SELECT) && looks_whole(t, n);
    if (words) {
        put(w, "(1.0 * ");
        print_node(t, n->kid[i], 8, w);
        put(w, ")");
    } else {
        print_node(t, n->kid[i], least, w);
    }
}

static void print_list(const tree *t, const node *n, writer *w)
{
    for (int i = 0; i < n->count; i++) {
        put(w, i ? ", " : "");
        print_kid(t, n, i, 0, w);
    }
}

static void print_float(double f, writer *w)
{
    char text[48];
    (void)snprintf(text, sizeof text, "%.15g", f);
    if (strtod(text, NULL) != f)
        (void)snprintf(text, sizeof text, "%.17g", f);
    if (!strpbrk(text, ".e"))
        (void)snprintf(text, sizeof text, "%.1f", f);
    put(w, text);
}

static void print_node(const tree *t, int at, int least, writer *w)
{
    const node *n = &t->nodes[at];
    const int own = tightness(n->op);
    char text[48];
    if (n->op == OP_CONVERT) {
        print_node(t, n->kid[0], least, w);
        return;
    }
    if (own < least)
        put(w, "(");
    switch (n->op) {
    case OP_INT:
        (void)snprintf(text, sizeof text, "%ld", (long)n->i);
        put(w, text);
        break;
    case OP_BOOL:
        put(w, n->i ? "true" : "false");
        break;
    case OP_FLOAT:
        print_float(n->f, w);
        break;
    case OP_PARAMETER:
        put(w, t->symbols[n->i].name);
        break;
    case OP_CAPTURE:
        put(w, t->symbols[n->i].name);
        put(w, "[");
        print_list(t, n, w);
        put(w, "]");
        break;
    case OP_NEG:
    case OP_NOT:
        put(w, name_of(n->op));
        print_kid(t, n, 0, 9, w);
        break;
    case OP_CHOICE:
        print_kid(t, n, 0, 2, w);
        put(w, " ? ");
        print_kid(t, n, 1, 2, w);
        put(w, " : ");
        print_kid(t, n, 2, 1, w);
        break;
    default:
        if (own < 9) {
            print_kid(t, n, 0, own + (own == 4 || own == 5), w);
            put(w, name_of(n->op));
            print_kid(t, n, 1, own + 1, w);
        } else {
            put(w, name_of(n->op));
            if (n->count) {
                put(w, "(");
                print_list(t, n, w);
                put(w, ")");
            }
        }
    }
    if (own < least)
        put(w, ")");
}

void tree_print(const tree *t, char *text, size_t size)
{
    writer w = {text, size, 0};
    text[0] = '\0';
    print_node(t, t->count - 1, 0, &w);
}

/* -------------------------------------------------------------------------------------------------------- shrinking */

static int copy_node(const tree *from, int at, int replaced, int with, tree *to)
{
    if (at == replaced) {
        if (with >= 0)
            return copy_node(from, with, -1, 0, to);
        const node_type type = from->nodes[at].type;
        to->nodes[to->count] = (node){.op = type == TYPE_BOOL  ? OP_BOOL
                                            : type == TYPE_INT ? OP_INT
                                                               : OP_FLOAT,
                                      .type = type,
                                      .i = 1,
                                      .f = 1};
        return to->count++;
    }
    node n = from->nodes[at];
    for (int i = 0; i < n.count; i++)
        n.kid[i] = copy_node(from, n.kid[i], replaced, with, to);
    to->nodes[to->count] = n;
    return to->count++;
}

bool tree_replace(tree *t, int at, int with)
{
    const node *n = &t->nodes[at];
    if (with < 0 ? n->count == 0 && n->op != OP_CAPTURE && n->op != OP_PARAMETER && n->op > OP_SCORE
                 : t->nodes[with].type != n->type)
        return false;
    tree result = *t;
    result.count = 0;
    (void)copy_node(t, t->count - 1, at, with, &result);
    *t = result;
    return true;
}
