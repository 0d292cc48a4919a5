/* SPDX-License-Identifier: MIT */
/* The language's arithmetic: integers that wrap, and masks in f32. */
#include "random/random.h"

#include <math.h>

/* ------------------------------------------------------------------------------------------------- i32, as it wraps */

static int32_t wrapped(int64_t value)
{
    const uint32_t bits = (uint32_t)(uint64_t)value;
    return bits > INT32_MAX ? (int32_t)((int64_t)bits - (INT64_C(1) << 32)) : (int32_t)bits;
}

static int64_t floor_quotient(int64_t a, int64_t b)
{
    if (b == 0)
        return 0;
    const int64_t quotient = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int32_t int_value(node_op op, int64_t a, int64_t b)
{
    switch (op) {
    case OP_NEG:
        return wrapped(-a);
    case OP_ABS:
        return wrapped(a < 0 ? -a : a);
    case OP_ADD:
        return wrapped(a + b);
    case OP_SUB:
        return wrapped(a - b);
    case OP_MUL:
        return wrapped(a * b);
    case OP_DIV:
        return wrapped(floor_quotient(a, b));
    case OP_MOD:
        return b == 0 ? 0 : wrapped(a - floor_quotient(a, b) * b);
    case OP_MIN:
        return (int32_t)(b < a ? b : a);
    case OP_MAX:
        return (int32_t)(a < b ? b : a);
    default:
        return 0;
    }
}

bool compared(node_op op, double a, double b)
{
    switch (op) {
    case OP_LT:
        return a < b;
    case OP_LE:
        return a <= b;
    case OP_GT:
        return a > b;
    case OP_GE:
        return a >= b;
    case OP_EQ:
        return a == b;
    default:
        return a != b;
    }
}

/* The element of a capture that the indices name; -1 = outside. */
int64_t element_at(const binding *array, int rank, const int32_t *index)
{
    int64_t at = 0;
    for (int i = 0; i < rank; i++) {
        if (index[i] < 0 || index[i] >= array->size[i])
            return -1;
        at = at * array->size[i] + index[i];
    }
    return at;
}

int32_t variable_at(node_op op, const point *p)
{
    switch (op) {
    case OP_B:
        return p->b;
    case OP_H:
        return p->h;
    case OP_Q:
        return p->q;
    case OP_KV:
        return p->kv;
    case OP_H_KV:
        return p->h_kv;
    case OP_Q_LEN:
        return p->q_len;
    case OP_ROW:
        return p->row;
    default:
        return p->kv_len;
    }
}

/* ----------------------------------------------------------------------------------------------------- masks in f32 */

typedef union exact {
    int32_t i; /* bool: 0 or 1 */
    float f;
} exact;

static exact exact_float(const node *n, const exact *a, const exact *b, const exact *c)
{
    exact r = {0};
    float low;
    switch (n->op) {
    case OP_NEG:
        r.f = -a->f;
        break;
    case OP_ADD:
        r.f = a->f + b->f;
        break;
    case OP_SUB:
        r.f = a->f - b->f;
        break;
    case OP_MUL:
        r.f = a->f * b->f;
        break;
    case OP_DIV:
        r.f = a->f / b->f;
        break;
    case OP_MOD:
        low = a->f / b->f;
        low = floorf(low);
        low = low * b->f;
        r.f = a->f - low;
        break;
    case OP_ABS:
        r.f = fabsf(a->f);
        break;
    case OP_MIN:
        r.f = b->f < a->f ? b->f : a->f;
        break;
    case OP_MAX:
        r.f = a->f < b->f ? b->f : a->f;
        break;
    case OP_CLAMP:
        low = a->f < b->f ? b->f : a->f;
        r.f = c->f < low ? c->f : low;
        break;
    case OP_FLOOR:
        r.f = floorf(a->f);
        break;
    case OP_CEIL:
        r.f = ceilf(a->f);
        break;
    default:
        break;
    }
    return r;
}

bool tree_allows(const tree *t, const binding *bindings, const point *p)
{
    exact values[TREE_NODES];
    static const exact none;
    for (int at = 0; at < t->count; at++) {
        const node *n = &t->nodes[at];
        const exact *a = n->count > 0 ? &values[n->kid[0]] : &none, *b = n->count > 1 ? &values[n->kid[1]] : &none,
                    *c = n->count > 2 ? &values[n->kid[2]] : &none;
        exact r = {0};
        int32_t index[ATTUNE_MAX_RANK] = {0};
        int64_t element;
        switch (n->op) {
        case OP_INT:
        case OP_BOOL:
            r.i = n->i;
            break;
        case OP_FLOAT:
            r.f = (float)n->f;
            break;
        case OP_PARAMETER:
            if (n->type == TYPE_FLOAT)
                r.f = (float)bindings[n->i].number;
            else
                r.i = (int32_t)bindings[n->i].number;
            break;
        case OP_CAPTURE:
            for (int i = 0; i < n->count; i++)
                index[i] = values[n->kid[i]].i;
            element = element_at(&bindings[n->i], n->count, index);
            if (element >= 0 && n->type == TYPE_FLOAT)
                r.f = (float)bindings[n->i].values[element];
            else if (element >= 0)
                r.i = (int32_t)bindings[n->i].values[element];
            break;
        case OP_CONVERT:
            r.f = (float)a->i;
            break;
        case OP_NOT:
            r.i = !a->i;
            break;
        case OP_AND:
            r.i = a->i && b->i;
            break;
        case OP_OR:
            r.i = a->i || b->i;
            break;
        case OP_LT:
        case OP_LE:
        case OP_GT:
        case OP_GE:
        case OP_EQ:
        case OP_NE:
            if (t->nodes[n->kid[0]].type == TYPE_FLOAT)
                r.i = compared(n->op, (double)a->f, (double)b->f);
            else
                r.i = compared(n->op, a->i, b->i);
            break;
        case OP_CHOICE:
        case OP_SELECT:
            r = a->i ? *b : *c;
            break;
        default:
            if (n->op <= OP_ROW)
                r.i = variable_at(n->op, p);
            else if (n->type == TYPE_FLOAT)
                r = exact_float(n, a, b, c);
            else if (n->op == OP_CLAMP)
                r.i = int_value(OP_MIN, int_value(OP_MAX, a->i, b->i), c->i);
            else
                r.i = int_value(n->op, a->i, b->i);
        }
        values[at] = r;
    }
    return values[t->count - 1].i;
}
