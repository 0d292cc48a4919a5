/* SPDX-License-Identifier: MIT */
/* Prints the IR as text, with the fewest parentheses that parse back to the same nodes. Of commutative operands the
 * deeper one is on the left, so that long chains do not nest. */
#include "expr/print.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "expr/builder.h"
#include "expr/ops.h"

/* Shared nodes are printed at each use, which can make the text grow exponentially. */
#define MAX_TEXT ((size_t)1 << 20)

enum { LEVEL_CHOICE, LEVEL_OR, LEVEL_AND, LEVEL_EQUAL, LEVEL_ORDER, LEVEL_SUM, LEVEL_PRODUCT, LEVEL_UNARY, LEVEL_NAME };

/* -------------------------------------------------------------------------------------------------- the text itself */

/* An explicit stack of pending output, since chains of operators can be as deep as the text is long. */
typedef struct task {
    const char *text; /* not NULL: only this text */
    uint32_t node;
    uint8_t level; /* of the context: a node of a lower level is printed in parentheses */
    bool as_float; /* the context does not convert i32 to f32 implicitly */
    bool minus;    /* " - " and the negative constant without its sign */
} task;

typedef struct printer {
    const attune_expr *expr;
    attune__text *out;
    const uint32_t *depth;
    task *tasks;
    uint32_t count;
} printer;

#define MAX_TASKS (8 * ATTUNE_EXPR_MAX_NODES)

static void push(printer *p, task t)
{
    p->tasks[p->count++] = t;
}

static void push_text(printer *p, const char *text)
{
    push(p, (task){.text = text});
}

static void push_node(printer *p, uint32_t node, uint8_t level, bool as_float)
{
    push(p, (task){.node = node, .level = level, .as_float = as_float});
}

static const attune__node *node_at(const printer *p, uint32_t node)
{
    return &p->expr->nodes[node];
}

static bool is_conversion(const printer *p, uint32_t node)
{
    return node_at(p, node)->op == ATTUNE__OP_FLOAT;
}

typedef struct infix {
    const char *sign;
    uint8_t level;
} infix;

static infix infix_of(uint8_t op)
{
    switch (op) {
    case ATTUNE__OP_OR:
        return (infix){" || ", LEVEL_OR};
    case ATTUNE__OP_AND:
        return (infix){" && ", LEVEL_AND};
    case ATTUNE__OP_EQ:
        return (infix){" == ", LEVEL_EQUAL};
    case ATTUNE__OP_NE:
        return (infix){" != ", LEVEL_EQUAL};
    case ATTUNE__OP_LT:
        return (infix){" < ", LEVEL_ORDER};
    case ATTUNE__OP_LE:
        return (infix){" <= ", LEVEL_ORDER};
    case ATTUNE__OP_ADD:
        return (infix){" + ", LEVEL_SUM};
    case ATTUNE__OP_SUB:
        return (infix){" - ", LEVEL_SUM};
    case ATTUNE__OP_MUL:
        return (infix){" * ", LEVEL_PRODUCT};
    case ATTUNE__OP_DIV:
        return (infix){" / ", LEVEL_PRODUCT};
    case ATTUNE__OP_MOD:
        return (infix){" % ", LEVEL_PRODUCT};
    default:
        return (infix){NULL, LEVEL_NAME};
    }
}

/* The level of a node in a context that converts i32 to f32. */
static uint8_t level_of(const printer *p, uint32_t node)
{
    const attune__node *n = node_at(p, node);
    return infix_of(n->op == ATTUNE__OP_FLOAT ? node_at(p, n->arg[0])->op : n->op).level;
}

/* The fewest digits that parse to the same constant: a mask's are f32. */
static void real_text(const attune_expr *expr, const attune__node *node, char text[ATTUNE__FLOAT_TEXT])
{
    if (expr->kind == ATTUNE_EXPR_MASK)
        attune__float_text(node->value.f, text);
    else
        attune__double_text(node->real, text);
}

static void add_const(printer *p, const attune__node *node, uint8_t level)
{
    char text[ATTUNE__FLOAT_TEXT];
    const char *shown = text;
    uint8_t own = LEVEL_NAME;
    if (node->type == ATTUNE__BOOL) {
        shown = node->value.i ? "true" : "false";
    } else if (node->type == ATTUNE__INT) {
        snprintf(text, sizeof text, "%d", node->value.i);
        own = node->value.i < 0 ? LEVEL_UNARY : LEVEL_NAME;
    } else if (isfinite(node->value.f)) {
        real_text(p->expr, node, text);
        own = signbit(node->value.f) ? LEVEL_UNARY : LEVEL_NAME;
    } else {
        shown = isnan(node->value.f) ? "0.0 / 0.0" : node->value.f > 0 ? "1.0 / 0.0" : "-1.0 / 0.0";
        own = LEVEL_PRODUCT;
    }
    attune__text_add(p->out, own < level ? "(%s)" : "%s", shown);
}

static bool commutes(const attune_expr *expr, const attune__node *node)
{
    bool ints = expr->nodes[node->arg[0]].type == ATTUNE__INT;
    switch (node->op) {
    case ATTUNE__OP_ADD:
    case ATTUNE__OP_MUL:
    case ATTUNE__OP_EQ:
    case ATTUNE__OP_NE:
    case ATTUNE__OP_AND:
    case ATTUNE__OP_OR:
        return true;
    case ATTUNE__OP_MIN:
    case ATTUNE__OP_MAX:
        return ints;
    default:
        return false;
    }
}

/* kv <= q reads better as q >= kv, and 0 < x as x > 0. */
static bool reads_better_swapped(const printer *p, const attune__node *node)
{
    const attune__node *a = node_at(p, node->arg[0]), *b = node_at(p, node->arg[1]);
    bool keys = a->op == ATTUNE__OP_VAR && a->value.i == ATTUNE__VAR_KV;
    return (a->op == ATTUNE__OP_CONST && b->op != ATTUNE__OP_CONST) || (keys && (b->uses & (1u << ATTUNE__VAR_Q)));
}

static void add_binary(printer *p, const attune__node *node, infix operator, uint8_t level)
{
    uint32_t a = node->arg[0], b = node->arg[1];
    /* on the left, an operator of the same level needs no parentheses */
    bool loose = level_of(p, b) == operator.level, tight = level_of(p, a) != operator.level;
    if (commutes(p->expr, node) && loose && (tight || p->depth[b] > p->depth[a])) {
        a = node->arg[1];
        b = node->arg[0];
    }
    const char *sign = operator.sign;
    if ((node->op == ATTUNE__OP_LT || node->op == ATTUNE__OP_LE) && reads_better_swapped(p, node)) {
        a = node->arg[1];
        b = node->arg[0];
        sign = node->op == ATTUNE__OP_LT ? " > " : " >= ";
    }
    bool parentheses = operator.level<level;
    /* one converted operand is converted again by its neighbour's type */
    bool convert = is_conversion(p, a) && is_conversion(p, b);
    /* comparisons of an order do not chain */
    uint8_t left = operator.level == LEVEL_ORDER ? LEVEL_SUM : operator.level;
    const attune__node *right = node_at(p, b);
    if (parentheses) {
        attune__text_add(p->out, "(");
        push_text(p, ")");
    }
    if (node->op == ATTUNE__OP_ADD && right->op == ATTUNE__OP_CONST && right->type == ATTUNE__INT &&
        right->value.i < 0 && right->value.i != INT32_MIN)
        push(p, (task){.node = b, .minus = true}); /* x + -1 as x - 1 */
    else {
        push_node(p, b, (uint8_t)(operator.level + 1), false);
        push_text(p, sign);
    }
    push_node(p, a, left, convert);
}

/* min(min(a, b), c) is min(a, b, c). */
static void add_chain(printer *p, uint32_t n)
{
    attune__text_add(p->out, "%s(", attune__op_name((attune__op)node_at(p, n)->op));
    push_text(p, ")");
    uint8_t op = node_at(p, n)->op;
    for (uint32_t length = 2;; length++) {
        const attune__node *node = node_at(p, n);
        uint32_t a = node->arg[0], b = node->arg[1];
        if (commutes(p->expr, node) && p->depth[b] > p->depth[a]) {
            a = node->arg[1];
            b = node->arg[0];
        }
        push_node(p, b, LEVEL_CHOICE, false);
        push_text(p, ", ");
        if (node_at(p, a)->op != op || length == ATTUNE__MAX_ARGUMENTS) {
            push_node(p, a, LEVEL_CHOICE, is_conversion(p, a) && is_conversion(p, b));
            return;
        }
        n = a;
    }
}

static void add_call(printer *p, const char *name, const attune__node *node, const char *close)
{
    attune__text_add(p->out, "%s", name);
    push_text(p, close);
    bool numbers = node->op == ATTUNE__OP_ABS || node->op == ATTUNE__OP_SELECT;
    for (uint32_t i = node->arg_count; i-- > 0;) {
        bool convert = numbers && is_conversion(p, node->arg[i]) &&
                       (node->op == ATTUNE__OP_ABS || (i == 1 && is_conversion(p, node->arg[2])));
        push_node(p, node->arg[i], LEVEL_CHOICE, convert);
        if (i)
            push_text(p, ", ");
    }
}

static void add_node(printer *p, task t)
{
    const attune__node *node = node_at(p, t.node);
    char name[80];
    infix operator= infix_of(node->op);
    switch (node->op) {
    case ATTUNE__OP_CONST:
        add_const(p, node, t.level);
        return;
    case ATTUNE__OP_VAR:
        attune__text_add(p->out, "%s", attune__var_name((attune__var)node->value.i));
        return;
    case ATTUNE__OP_PARAM:
        attune__text_add(p->out, "%s", p->expr->symbols[node->value.i].name);
        return;
    case ATTUNE__OP_CAPTURE:
        snprintf(name, sizeof name, "%s[", p->expr->symbols[node->value.i].name);
        add_call(p, name, node, "]");
        return;
    case ATTUNE__OP_NEG:
    case ATTUNE__OP_NOT:
        if (t.level > LEVEL_UNARY) {
            attune__text_add(p->out, "(");
            push_text(p, ")");
        }
        attune__text_add(p->out, node->op == ATTUNE__OP_NEG ? "-" : "!");
        push_node(p, node->arg[0], LEVEL_NAME, true);
        return;
    case ATTUNE__OP_FLOAT:
        if (!t.as_float) {
            push_node(p, node->arg[0], t.level, false);
            return;
        }
        if (t.level > LEVEL_PRODUCT) {
            attune__text_add(p->out, "(");
            push_text(p, ")");
        }
        push_text(p, " * 1.0");
        push_node(p, node->arg[0], LEVEL_PRODUCT, false);
        return;
    case ATTUNE__OP_MIN:
    case ATTUNE__OP_MAX:
        add_chain(p, t.node);
        return;
    case ATTUNE__OP_SELECT:
        if (t.level == LEVEL_CHOICE) {
            push_node(p, node->arg[2], LEVEL_CHOICE, false);
            push_text(p, " : ");
            push_node(p, node->arg[1], LEVEL_CHOICE, is_conversion(p, node->arg[1]) && is_conversion(p, node->arg[2]));
            push_text(p, " ? ");
            push_node(p, node->arg[0], LEVEL_OR, false);
            return;
        }
        add_call(p, "select(", node, ")");
        return;
    default:
        if (operator.sign) {
            add_binary(p, node, operator, t.level);
            return;
        }
        snprintf(name, sizeof name, "%s(", attune__op_name((attune__op)node->op));
        add_call(p, name, node, ")");
        return;
    }
}

attune_status attune__print_node(const attune_expr *expr, uint32_t node, attune__text *out)
{
    uint32_t depth[ATTUNE_EXPR_MAX_NODES];
    for (uint32_t i = 0; i < expr->node_count; i++) {
        depth[i] = 1;
        for (uint32_t j = 0; j < expr->nodes[i].arg_count; j++)
            if (depth[expr->nodes[i].arg[j]] >= depth[i])
                depth[i] = depth[expr->nodes[i].arg[j]] + 1;
    }
    task *tasks = attune__alloc_raw(&expr->allocator, MAX_TASKS, sizeof *tasks);
    if (!tasks)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    printer p = {.expr = expr, .out = out, .depth = depth, .tasks = tasks};
    attune_status status = ATTUNE_OK;
    push_node(&p, node, LEVEL_CHOICE, false);
    while (p.count && status == ATTUNE_OK) {
        task t = p.tasks[--p.count];
        if (t.minus)
            attune__text_add(out, " - %d", -expr->nodes[t.node].value.i);
        else if (t.text)
            attune__text_add(out, "%s", t.text);
        else
            add_node(&p, t);
        if (out->length > MAX_TEXT)
            status = attune__fail(ATTUNE_UNSUPPORTED,
                                  "the expression shares so many parts that its text is longer than %zu bytes; print "
                                  "its nodes with ATTUNE_EXPR_IR",
                                  MAX_TEXT);
        /* a node pushes fewer tasks than the stack has left for each level of the graph */
        if (p.count + 2 * ATTUNE__MAX_ARGUMENTS + 8 > MAX_TASKS)
            status = attune__fail(ATTUNE_UNSUPPORTED, "the expression is too deep to be printed as text");
    }
    attune__free(&expr->allocator, tasks);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- listing */

static void print_ir(const attune_expr *expr, attune__text *out)
{
    for (uint32_t i = 0; i < expr->node_count; i++) {
        const attune__node *node = &expr->nodes[i];
        char text[ATTUNE__FLOAT_TEXT];
        attune__text_add(out, "%u %s %s", i, attune__type_name((attune__type)node->type),
                         attune__op_name((attune__op)node->op));
        if (node->op == ATTUNE__OP_CONST && node->type == ATTUNE__BOOL) {
            attune__text_add(out, " %s", node->value.i ? "true" : "false");
        } else if (node->op == ATTUNE__OP_CONST && node->type == ATTUNE__INT) {
            attune__text_add(out, " %d", node->value.i);
        } else if (node->op == ATTUNE__OP_CONST) {
            real_text(expr, node, text);
            attune__text_add(out, " %s", text);
        } else if (node->op == ATTUNE__OP_VAR) {
            attune__text_add(out, " %s", attune__var_name((attune__var)node->value.i));
        } else if (node->op == ATTUNE__OP_PARAM || node->op == ATTUNE__OP_CAPTURE) {
            const attune__symbol *symbol = &expr->symbols[node->value.i];
            attune__text_add(out, " %s:%s", symbol->name, attune_dtype_string(symbol->dtype));
        }
        for (uint32_t j = 0; j < node->arg_count; j++)
            attune__text_add(out, " %u", node->arg[j]);
        attune__text_add(out, "\n");
    }
}

attune_status attune__expr_print(const attune_expr *expr, attune_expr_format format, char *buffer, size_t size,
                                 size_t *needed)
{
    attune__text text = attune__text_begin(buffer, size);
    if (format == ATTUNE_EXPR_TEXT)
        ATTUNE__TRY(attune__print_node(expr, expr->node_count - 1, &text));
    else if (format == ATTUNE_EXPR_IR)
        print_ir(expr, &text);
    else {
        attune__ctext_prelude(&text);
        ATTUNE__TRY(
            attune__ctext_function(expr, expr->kind == ATTUNE_EXPR_MASK ? "attune_mask" : "attune_score", &text));
    }
    attune__text_end(&text, needed);
    return ATTUNE_OK;
}
