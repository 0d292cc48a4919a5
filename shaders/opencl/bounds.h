/* SPDX-License-Identifier: MIT */
/*
 * Intervals of integers and of false 0 and true 1, as src/expr/bounds.c has them: what the generated bounds of a mask
 * call (src/expr/ctext_bounds.c). What may wrap has any value. OpenCL C and C99, after a prelude.
 */
#ifndef ATTUNE_BOUNDS_H
#define ATTUNE_BOUNDS_H

typedef struct attune_range {
    int low, high;
} attune_range;

ATTUNE_FUNCTION attune_range attune_range_of(int low, int high)
{
    attune_range r;
    r.low = low;
    r.high = high;
    return r;
}

#define ATTUNE_POINT(x) attune_range_of(x, x)
#define ATTUNE_ALL      attune_range_of(-2147483647 - 1, 2147483647)
#define ATTUNE_EITHER   attune_range_of(0, 1)

ATTUNE_FUNCTION int attune_low(attune_range a)
{
    return a.low;
}
ATTUNE_FUNCTION int attune_is_point(attune_range a)
{
    return a.low == a.high;
}
ATTUNE_FUNCTION attune_range attune_bound_one(int exact, int value, attune_range all)
{
    return attune_range_of(exact ? value : all.low, exact ? value : all.high);
}

/* The least and the largest of exact results. */
ATTUNE_FUNCTION attune_range attune_bound_exact(long low, long high)
{
    const int fits = low >= -2147483647l - 1l && high <= 2147483647l;
    return fits ? attune_range_of((int)low, (int)high) : ATTUNE_ALL;
}
ATTUNE_FUNCTION attune_range attune_bound_add(attune_range a, attune_range b)
{
    return attune_bound_exact((long)a.low + b.low, (long)a.high + b.high);
}
ATTUNE_FUNCTION attune_range attune_bound_sub(attune_range a, attune_range b)
{
    return attune_bound_exact((long)a.low - b.high, (long)a.high - b.low);
}
ATTUNE_FUNCTION attune_range attune_bound_mul(attune_range a, attune_range b)
{
    const long p = (long)a.low * b.low, q = (long)a.low * b.high, r = (long)a.high * b.low, s = (long)a.high * b.high;
    const long least = p < q ? p : q, other_least = r < s ? r : s, most = p < q ? q : p, other_most = r < s ? s : r;
    return attune_bound_exact(least < other_least ? least : other_least, most < other_most ? other_most : most);
}
/* By one number above 0 it is monotone. */
ATTUNE_FUNCTION attune_range attune_bound_div(attune_range a, attune_range b)
{
    const attune_range divided = attune_range_of(attune_idiv(a.low, b.low), attune_idiv(a.high, b.low));
    return b.low == b.high && b.low > 0 ? divided : ATTUNE_ALL;
}
ATTUNE_FUNCTION attune_range attune_bound_min(attune_range a, attune_range b)
{
    return attune_range_of(a.low < b.low ? a.low : b.low, a.high < b.high ? a.high : b.high);
}
ATTUNE_FUNCTION attune_range attune_bound_max(attune_range a, attune_range b)
{
    return attune_range_of(a.low < b.low ? b.low : a.low, a.high < b.high ? b.high : a.high);
}
ATTUNE_FUNCTION attune_range attune_bound_neg(attune_range a)
{
    return attune_bound_exact(-(long)a.high, -(long)a.low);
}
ATTUNE_FUNCTION attune_range attune_bound_abs(attune_range a)
{
    const long low = a.low, high = a.high, most = -low < high ? high : -low;
    return attune_bound_exact(low > 0l ? low : high < 0l ? -high : 0l, most);
}

ATTUNE_FUNCTION attune_range attune_bound_eq(attune_range a, attune_range b)
{
    return attune_range_of(a.low == b.high && a.high == b.low, a.low <= b.high && b.low <= a.high);
}
ATTUNE_FUNCTION attune_range attune_bound_not(attune_range a)
{
    return attune_range_of(1 - a.high, 1 - a.low);
}
ATTUNE_FUNCTION attune_range attune_bound_ne(attune_range a, attune_range b)
{
    return attune_bound_not(attune_bound_eq(a, b));
}
ATTUNE_FUNCTION attune_range attune_bound_lt(attune_range a, attune_range b)
{
    return attune_range_of(a.high < b.low, a.low < b.high);
}
ATTUNE_FUNCTION attune_range attune_bound_le(attune_range a, attune_range b)
{
    return attune_range_of(a.high <= b.low, a.low <= b.high);
}
ATTUNE_FUNCTION attune_range attune_bound_and(attune_range a, attune_range b)
{
    return attune_range_of(a.low & b.low, a.high & b.high);
}
ATTUNE_FUNCTION attune_range attune_bound_or(attune_range a, attune_range b)
{
    return attune_range_of(a.low | b.low, a.high | b.high);
}
ATTUNE_FUNCTION attune_range attune_bound_select(attune_range c, attune_range a, attune_range b)
{
    const attune_range both = attune_range_of(a.low < b.low ? a.low : b.low, a.high < b.high ? b.high : a.high);
    return c.low == 1 ? a : c.high == 0 ? b : both;
}

#endif
