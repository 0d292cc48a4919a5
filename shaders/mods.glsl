/* SPDX-License-Identifier: MIT */
/*
 * The caller's expressions. A kernel includes this file and calls attune_score and attune_mask. These are stubs, which
 * src/vulkan/splice.c replaces in the compiled module by functions emitted from the IR. Emitted functions call the
 * helpers attune_mod_* by name: compile with names (never -g0), and keep optimisers away from this file's functions.
 * Helpers that no emitted function calls are removed.
 *
 * The kernel's extensions, before any declaration: #extension GL_EXT_buffer_reference : require #extension
 * GL_EXT_buffer_reference_uvec2 : require
 *
 * `mod` is the device address of the expression's table (src/vulkan/mods.h has its layout), aligned to 16. It is never
 * read where the expression is NULL. Nothing here needs 64-bit integers, descriptors or uniform control flow.
 */

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer AttuneModTable
{
    uvec4 x[];
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer AttuneModWords
{
    int x[];
};
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer AttuneModWord
{
    uint x;
};

int attune_mod_word(const in uvec2 mod, const in int n)
{
    return AttuneModWords(mod).x[n];
}

/* ------------------------------------------------------------------------------------------------------------ i32 */

/* Divisors 0 and -1 are not divided by: one is undefined, the other overflows. */
int attune_mod_idiv(const in int a, const in int b)
{
    int d = b == 0 || b == -1 ? 1 : b;
    int quotient = a / d, rest = a - quotient * d;
    quotient -= rest != 0 && (rest ^ d) < 0 ? 1 : 0;
    return b == 0 ? 0 : b == -1 ? 0 - a : quotient;
}

int attune_mod_imod(const in int a, const in int b)
{
    int d = b == 0 || b == -1 ? 1 : b;
    int rest = a - a / d * d;
    return rest != 0 && (rest ^ d) < 0 ? rest + d : rest;
}

/* ------------------------------------------------------------------------------------------------------------ f32 */

/* NaN is recognised and made by its bits: a driver may assume that floats have none. */
bool attune_mod_is_nan(const in float x)
{
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u;
}
bool attune_mod_is_finite(const in float x)
{
    return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u;
}

/* Below 0, or NaN: where logarithms and roots are NaN. */
bool attune_mod_is_below(const in float x)
{
    uint bits = floatBitsToUint(x);
    return bits > 0x7f800000u && bits != 0x80000000u;
}

float attune_mod_or_nan(const in bool valid, const in float x)
{
    return uintBitsToFloat(valid ? floatBitsToUint(x) : 0x7fc00000u);
}

float attune_mod_choose(const in bool first, const in float a, const in float b)
{
    return uintBitsToFloat(first ? floatBitsToUint(a) : floatBitsToUint(b));
}

float attune_mod_fmod(const in float a, const in float b)
{
    precise float whole = floor(a / b);
    precise float r = a - whole * b;
    return attune_mod_or_nan(attune_mod_is_finite(a) && attune_mod_is_finite(b) && b != 0.0, r);
}

float attune_mod_abs(const in float x)
{
    return uintBitsToFloat(floatBitsToUint(x) & 0x7fffffffu);
}
float attune_mod_floor(const in float x)
{
    return attune_mod_choose(attune_mod_is_finite(x), floor(x), x);
}
float attune_mod_ceil(const in float x)
{
    return attune_mod_choose(attune_mod_is_finite(x), ceil(x), x);
}
float attune_mod_exp(const in float x)
{
    return attune_mod_or_nan(!attune_mod_is_nan(x), exp(x));
}
float attune_mod_exp2(const in float x)
{
    return attune_mod_or_nan(!attune_mod_is_nan(x), exp2(x));
}
float attune_mod_log(const in float x)
{
    return attune_mod_or_nan(!attune_mod_is_below(x), log(x));
}
float attune_mod_log2(const in float x)
{
    return attune_mod_or_nan(!attune_mod_is_below(x), log2(x));
}
float attune_mod_sqrt(const in float x)
{
    return attune_mod_or_nan(!attune_mod_is_below(x), sqrt(x));
}
float attune_mod_rsqrt(const in float x)
{
    return attune_mod_or_nan(!attune_mod_is_below(x), inversesqrt(x));
}

/* Drivers' own tanh is NaN past 88 on some, and cancels near 0 on others. Past 9.1 the nearest f32 is 1. Fused, where
 * the device can: a soft-cap evaluates this for every pair. */
float attune_mod_tanh(const in float x)
{
    precise float a = min(abs(x), 10.0), z = a * a;
    precise float p = fma(-5.70498872745e-3, z, 2.06390887954e-2);
    p = fma(p, z, -5.37397155531e-2);
    p = fma(p, z, 1.33314422036e-1);
    p = fma(p, z, -3.33332819422e-1);
    precise float small = fma(p * z, a, a);
    precise float large = fma(-2.0, 1.0 / (exp2(a * 2.88539008177792681) + 1.0), 1.0);
    uint bits = floatBitsToUint(a < 0.625 ? small : large) | (floatBitsToUint(x) & 0x80000000u);
    return attune_mod_or_nan(!attune_mod_is_nan(x), uintBitsToFloat(bits));
}

#ifdef SHORT_FUNCTIONS
/* Within 2^-21 of tanh, with NaN for NaN: for scores that are smooth (attune__is_smooth), in kernels that round weights
 * to 16 bits. */
float attune_mod_short_tanh(const in float x)
{
    return fma(-2.0, 1.0 / (exp2(x * 2.88539008177792681) + 1.0), 1.0);
}

/* outer * tanh(x * inner / 2.885), likewise: a soft-cap, whose constants the emitted function has. */
float attune_mod_short_cap(const in float x, const in float inner, const in float outer)
{
    return fma(-2.0 * outer, 1.0 / (exp2(x * inner) + 1.0), outer);
}
#endif

/* The guard partial infinity out of the division. */
float attune_mod_sigmoid(const in float x)
{
    precise float r = 1.0 / (1.0 + exp(x < -87.0 ? 87.0 : -x));
    return attune_mod_or_nan(!attune_mod_is_nan(x), x < -87.0 ? 0.0 : r);
}

/* Vulkan bounds the error of sin and cos in -pi ... pi alone: 2 pi in three parts, of which the first two times a
 * whole number below 2^12 are exact. */
float attune_mod_reduce_angle(const in float x)
{
    precise float k = floor(x * 0.15915494309189535 + 0.5);
    precise float r = x - k * 6.28125;
    r = r - k * 0.0019340515136718750;
    r = r - k * 0.0000012556659146015;
    return r;
}

float attune_mod_sin(const in float x)
{
    return attune_mod_or_nan(attune_mod_is_finite(x), sin(attune_mod_reduce_angle(x)));
}
float attune_mod_cos(const in float x)
{
    return attune_mod_or_nan(attune_mod_is_finite(x), cos(attune_mod_reduce_angle(x)));
}

/* C's pow; GLSL leaves negative and zero bases undefined. */
float attune_mod_pow(const in float x, const in float y)
{
    const float infinity = uintBitsToFloat(0x7f800000u);
    precise float a = abs(x), half_y = y * 0.5;
    precise float r = a == 0.0 ? (y > 0.0 ? 0.0 : infinity) : pow(a, y);
    bool whole = floor(y) == y, odd = whole && floor(half_y) != half_y;
    bool negative = floatBitsToInt(x) < 0;
    if (negative && odd)
        r = -r;
    bool none = (x < 0.0 && !whole && attune_mod_is_finite(x)) || attune_mod_is_nan(x) || attune_mod_is_nan(y);
    uint bits_x = floatBitsToUint(x), bits_y = floatBitsToUint(y) & 0x7fffffffu;
    bool one = bits_y == 0u || bits_x == 0x3f800000u || (bits_x == 0xbf800000u && bits_y == 0x7f800000u);
    return attune_mod_choose(one, 1.0, attune_mod_or_nan(!none, r));
}

/* ------------------------------------------------------------------------------------------------------- captures */

/* a + index * stride modulo 2^64, which is exact wherever the sum is an address. */
uvec2 attune_mod_step(const in uvec2 a, const in uint index, const in uvec2 stride)
{
    uint high, low, carry;
    umulExtended(index, stride.x, high, low);
    low = uaddCarry(a.x, low, carry);
    return uvec2(low, a.y + high + index * stride.y + carry);
}

/* The address of an element of the capture whose descriptor starts at uvec4 `at`, and whether the index is in range. An
 * index out of range gets the table's own address, which is readable; the value is dropped. */
uvec3 attune_mod_at_1(const in uvec2 mod, const in int at, const in int i)
{
    AttuneModTable t = AttuneModTable(mod);
    uvec4 head = t.x[at], size = t.x[at + 1], stride = t.x[at + 2];
    bool inside = uint(i) < size.x;
    uvec2 a = attune_mod_step(head.xy, uint(i), stride.xy);
    return uvec3(inside ? a : mod, inside ? 1u : 0u);
}

uvec3 attune_mod_at_2(const in uvec2 mod, const in int at, const in int i, const in int j)
{
    AttuneModTable t = AttuneModTable(mod);
    uvec4 head = t.x[at], size = t.x[at + 1], stride = t.x[at + 2];
    bool inside = uint(i) < size.x && uint(j) < size.y;
    uvec2 a = attune_mod_step(head.xy, uint(i), stride.xy);
    a = attune_mod_step(a, uint(j), stride.zw);
    return uvec3(inside ? a : mod, inside ? 1u : 0u);
}

uvec3 attune_mod_at_3(const in uvec2 mod, const in int at, const in int i, const in int j, const in int k)
{
    AttuneModTable t = AttuneModTable(mod);
    uvec4 head = t.x[at], size = t.x[at + 1], stride = t.x[at + 2], more = t.x[at + 3];
    bool inside = uint(i) < size.x && uint(j) < size.y && uint(k) < size.z;
    uvec2 a = attune_mod_step(head.xy, uint(i), stride.xy);
    a = attune_mod_step(a, uint(j), stride.zw);
    a = attune_mod_step(a, uint(k), more.xy);
    return uvec3(inside ? a : mod, inside ? 1u : 0u);
}

uvec3 attune_mod_at_4(const in uvec2 mod, const in int at, const in int i, const in int j, const in int k,
                      const in int l)
{
    AttuneModTable t = AttuneModTable(mod);
    uvec4 head = t.x[at], size = t.x[at + 1], stride = t.x[at + 2], more = t.x[at + 3];
    bool inside = uint(i) < size.x && uint(j) < size.y && uint(k) < size.z && uint(l) < size.w;
    uvec2 a = attune_mod_step(head.xy, uint(i), stride.xy);
    a = attune_mod_step(a, uint(j), stride.zw);
    a = attune_mod_step(a, uint(k), more.xy);
    a = attune_mod_step(a, uint(l), more.zw);
    return uvec3(inside ? a : mod, inside ? 1u : 0u);
}

/* The 32-bit word that has the element, shifted down to it: arrays are aligned to their elements alone. */
uint attune_mod_bits(const in uvec3 a)
{
    uint word = AttuneModWord(uvec2(a.x & ~3u, a.y)).x >> ((a.x & 3u) << 3);
    return a.z != 0u ? word : 0u;
}

int attune_mod_i32(const in uvec3 a)
{
    return int(attune_mod_bits(a));
}
int attune_mod_u8(const in uvec3 a)
{
    return int(attune_mod_bits(a) & 255u);
}
bool attune_mod_bool(const in uvec3 a)
{
    return (attune_mod_bits(a) & 255u) != 0u;
}
float attune_mod_f32(const in uvec3 a)
{
    return uintBitsToFloat(attune_mod_bits(a));
}
float attune_mod_bf16(const in uvec3 a)
{
    return uintBitsToFloat(attune_mod_bits(a) << 16);
}

/* Clamped to i32. The address is a multiple of 8: its second half needs no carry. */
int attune_mod_i64(const in uvec3 a)
{
    int low = int(attune_mod_bits(a)), high = int(attune_mod_bits(uvec3(a.x + 4u, a.yz)));
    return high == low >> 31 ? low : high < 0 ? -2147483647 - 1 : 2147483647;
}

/* A driver may flush denormals of binary16, which are plain numbers in f32. */
float attune_mod_f16(const in uvec3 a)
{
    uint h = attune_mod_bits(a) & 0xffffu;
    float small = float(h & 1023u) * 5.9604644775390625e-8;
    small = (h & 0x8000u) != 0u ? -small : small;
    return (h & 0x7c00u) == 0u ? small : unpackHalf2x16(h).x;
}

/* ---------------------------------------------------------------------------------------------------------- stubs */

/* glslang drops functions that nothing calls. */
void attune_mod_keep(const in uvec2 mod)
{
    int i = attune_mod_word(mod, 0);
    i = attune_mod_idiv(i, attune_mod_imod(i, 3));
    float f = attune_mod_fmod(float(i), 2.0) + attune_mod_abs(0.0) + attune_mod_floor(0.0) + attune_mod_ceil(0.0);
    f += attune_mod_exp(f) + attune_mod_exp2(f) + attune_mod_log(f) + attune_mod_log2(f) + attune_mod_sqrt(f);
    f += attune_mod_rsqrt(f) + attune_mod_tanh(f) + attune_mod_sigmoid(f) + attune_mod_sin(f) + attune_mod_cos(f);
    f += attune_mod_pow(f, f);
#ifdef SHORT_FUNCTIONS
    f += attune_mod_short_tanh(f) + attune_mod_short_cap(f, f, f);
#endif
    uvec3 a = attune_mod_at_1(mod, 2, i) + attune_mod_at_2(mod, 2, i, i) + attune_mod_at_3(mod, 2, i, i, i);
    a += attune_mod_at_4(mod, 2, i, i, i, i);
    i += attune_mod_i32(a) + attune_mod_i64(a) + attune_mod_u8(a) + (attune_mod_bool(a) ? 1 : 0);
    f += attune_mod_f32(a) + attune_mod_f16(a) + attune_mod_bf16(a);
}

/* A sequence's own lengths, and its row among all: in dense calls the table has the lengths. */
#ifdef SERVING
#define OF_SEQUENCE , const in int q_len, const in int kv_len, const in int row
#else
#define OF_SEQUENCE
#endif

#ifdef SERVING
/* -------------------------------------------------------------------------------------------------------- intervals */

const ivec2 ATTUNE_ALL = ivec2(-2147483647 - 1, 2147483647);

/* The sum of two numbers; `valid` becomes false if it wraps. */
int attune_mod_sum(const in int a, const in int b, inout bool valid)
{
    int sum = a + b;
    valid = valid && ((a ^ sum) & (b ^ sum)) >= 0;
    return sum;
}

int attune_mod_product(const in int a, const in int b, inout bool valid)
{
    int high, low;
    imulExtended(a, b, high, low);
    valid = valid && high == low >> 31;
    return low;
}

/* As src/expr/bounds.c, with the operations of src/vulkan/emit.c: [low, high] of integers, or of false 0 and true 1.
 * What may wrap has any value. */
ivec2 attune_mod_bound(const in int op, const in ivec2 a, const in ivec2 b)
{
    bool valid = true;
    ivec2 r = ATTUNE_ALL;
    switch (op) {
    case 0:
        r = ivec2(attune_mod_sum(a.x, b.x, valid), attune_mod_sum(a.y, b.y, valid));
        break;
    case 1: /* a + ~b + 1 = a - b, and ~b never wraps */
        valid = (a.x ^ b.y) >= 0 || ((a.x ^ (a.x - b.y)) >= 0);
        valid = valid && ((a.y ^ b.x) >= 0 || ((a.y ^ (a.y - b.x)) >= 0));
        r = ivec2(a.x - b.y, a.y - b.x);
        break;
    case 2: {
        ivec4 p = ivec4(attune_mod_product(a.x, b.x, valid), attune_mod_product(a.x, b.y, valid),
                        attune_mod_product(a.y, b.x, valid), attune_mod_product(a.y, b.y, valid));
        r = ivec2(min(min(p.x, p.y), min(p.z, p.w)), max(max(p.x, p.y), max(p.z, p.w)));
        break;
    }
    case 3: /* by one number above 0 it is monotone */
        valid = b.x == b.y && b.x > 0;
        r = ivec2(attune_mod_idiv(a.x, b.x), attune_mod_idiv(a.y, b.x));
        break;
    case 4:
        return min(a, b);
    case 5:
        return max(a, b);
    case 6:
        return ivec2(a.x == b.y && a.y == b.x ? 1 : 0, a.x <= b.y && b.x <= a.y ? 1 : 0);
    case 7:
        return ivec2(a.x > b.y || b.x > a.y ? 1 : 0, a.x != b.y || a.y != b.x ? 1 : 0);
    case 8:
        return ivec2(a.y < b.x ? 1 : 0, a.x < b.y ? 1 : 0);
    case 9:
        return ivec2(a.y <= b.x ? 1 : 0, a.x <= b.y ? 1 : 0);
    case 10:
        return a & b;
    case 11:
        return a | b;
    case 12:
        valid = a.x != ATTUNE_ALL.x;
        r = ivec2(max(max(a.x, -a.y), 0), max(-a.x, a.y));
        break;
    default:
        valid = a.x != ATTUNE_ALL.x;
        r = ivec2(-a.y, -a.x);
        break;
    }
    return valid ? r : ATTUNE_ALL;
}

ivec2 attune_mod_bound_select(const in ivec2 c, const in ivec2 a, const in ivec2 b)
{
    return c.x == 1 ? a : c.y == 0 ? b : ivec2(min(a.x, b.x), max(a.y, b.y));
}

/* Whether the mask is false and whether it is true at some pairs of a box, or may be: low 1 = it is true at all of
 * them, high 0 = at none. */
ivec2 attune_mask_bounds(const in int b, const in ivec2 h, const in ivec2 q, const in ivec2 kv, const in uvec2 mod,
                         const in int q_len, const in int kv_len, const in ivec2 row)
{
    return attune_mod_bound_select(attune_mod_bound(q_len, q, kv), h, row);
}
#endif

float attune_score(const in float score, const in int b, const in int h, const in int q, const in int kv,
                   const in uvec2 mod OF_SEQUENCE)
{
    attune_mod_keep(mod);
    return score;
}

bool attune_mask(const in int b, const in int h, const in int q, const in int kv, const in uvec2 mod OF_SEQUENCE)
{
    attune_mod_keep(mod);
    return true;
}
