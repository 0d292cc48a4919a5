/* SPDX-License-Identifier: MIT */
/* Sorted tiles: the order is one of all rows and columns, the bits are those of the tile, and known masks get few
 * cells. */
#include <criterion/criterion.h>
#include <string.h>

#include "cpu/order.h"
#include "support/devices.h"
#include "tests/oracle/reference.h"

enum { MOST = ATTUNE__ORDER_MOST, WORDS = ATTUNE__ORDER_WORDS };

typedef struct tile {
    uint16_t bits[MOST][WORDS];
    size_t rows, columns;
} tile;

static bool bit_at(const uint16_t bits[MOST][WORDS], size_t r, size_t c)
{
    return bits[r][c / 16] >> c % 16 & 1;
}

static void set(tile *t, bool (*allowed)(int q, int kv), int q0, int kv0)
{
    memset(t, 0, sizeof *t);
    t->rows = t->columns = MOST;
    for (size_t r = 0; r < MOST; r++)
        for (size_t c = 0; c < MOST; c++)
            if (allowed(q0 + (int)r, kv0 + (int)c))
                t->bits[r][c / 16] = (uint16_t)(t->bits[r][c / 16] | 1u << c % 16);
}

/* Finds the order and returns its cells' pairs. */
static size_t check(const tile *t, bool first)
{
    attune__order order;
    bool row[MOST] = {false}, column[MOST] = {false}, ended = false;
    memset(&order, 0x5a, sizeof order);
    attune__order_find(t->bits[0], WORDS, t->rows, t->columns, first, &order);
    for (size_t i = 0; i < t->rows; i++) {
        cr_assert(order.row[i] < t->rows && !row[order.row[i]]);
        row[order.row[i]] = true;
    }
    for (size_t i = 0; i < t->columns; i++) {
        cr_assert(order.column[i] < t->columns && !column[order.column[i]]);
        column[order.column[i]] = true;
    }
    for (size_t r = 0; r < MOST; r++) {
        bool any = false;
        for (size_t c = 0; c < MOST; c++) {
            const bool want = r < t->rows && c < t->columns && bit_at(t->bits, order.row[r], order.column[c]);
            cr_assert_eq(bit_at(order.bits, r, c), want, "row %d, column %d", (int)r, (int)c);
            any |= want;
        }
        /* Rows without a pair are the last. */
        cr_assert(!any || !ended);
        ended |= !any;
    }
    return attune__order_cells(order.bits[0], WORDS, t->rows, WORDS);
}

static size_t least(const tile *t)
{
    const size_t a = check(t, false), b = check(t, true);
    return a < b ? a : b;
}

Test(order, any_bits)
{
    random_state r = {test_seed()};
    for (int round = 0; round < 2000; round++) {
        tile t = {.rows = 1 + random_u64(&r) % MOST, .columns = 1 + random_u64(&r) % MOST};
        const uint64_t kinds = 1 + random_u64(&r) % 20, density = 1 + random_u64(&r) % 30;
        for (size_t i = 0; i < t.rows; i++)
            for (size_t c = 0; c < t.columns; c++)
                if ((i * 31 % kinds + c * 17) % density == 0 || random_u64(&r) % 200 == 0)
                    t.bits[i][c / 16] = (uint16_t)(t.bits[i][c / 16] | 1u << c % 16);
        check(&t, round % 2 != 0);
    }
}

/* Orders that are kept are those of equal tiles alone. */
Test(order, known)
{
    static attune__known_orders known;
    random_state r = {test_seed()};
    tile tiles[12];
    size_t cells[12];
    attune__order_begin(&known);
    for (size_t i = 0; i < 12; i++) {
        memset(&tiles[i], 0, sizeof tiles[i]);
        /* Some differ by a single bit, or in their number of rows alone. */
        if (i % 3)
            tiles[i] = tiles[i - 1];
        else
            tiles[i].rows = tiles[i].columns = 100;
        for (size_t j = 0; j < (i % 3 ? 1 : 3000); j++)
            tiles[i].bits[random_u64(&r) % 90][random_u64(&r) % 6] ^= (uint16_t)(1u << random_u64(&r) % 16);
        if (i % 3 == 2)
            tiles[i].rows++;
        cells[i] = least(&tiles[i]);
    }
    for (int round = 0; round < 3000; round++) {
        const size_t i = random_u64(&r) % 12;
        const tile *t = &tiles[i];
        const attune__known_order *k =
            attune__order_known(&known, t->bits[0], WORDS, t->rows, t->columns, round % 2 ? 0 : t->rows);
        cr_assert_eq(k->cells, cells[i]);
        for (size_t row = 0; row < t->rows; row++)
            for (size_t c = 0; c < t->columns; c++)
                cr_assert_eq(bit_at(k->order.bits, row, c), bit_at(t->bits, k->order.row[row], k->order.column[c]));
    }
}

static bool dilated(int q, int kv)
{
    return (q - kv) % 4 == 0;
}

static bool dilated_causal(int q, int kv)
{
    return q >= kv && dilated(q, kv);
}

static bool dilated_end(int q, int kv)
{
    return q - kv < 256 && dilated(q, kv);
}

static bool shuffled(int q, int kv)
{
    return q * 37 % MOST >= kv * 37 % MOST;
}

static bool near(int a, int b)
{
    return a - b <= 3 && b - a <= 3;
}

static bool neighbours(int q, int kv)
{
    return near(q / 32, kv / 32) && near(q % 32, kv % 32);
}

/* Pairs of cells beside those that the mask allows. */
Test(order, known_masks)
{
    tile t;
    set(&t, dilated, 0, 0);
    cr_expect_eq(least(&t), MOST * MOST / 4);
    set(&t, dilated_causal, 0, 0);
    cr_expect_leq(least(&t), MOST * MOST / 4 * 3 / 4);
    set(&t, dilated_end, 256, 0);
    cr_expect_leq(least(&t), MOST * MOST / 4 * 3 / 2);
    set(&t, shuffled, 0, 0);
    cr_expect_leq(least(&t), MOST * MOST * 9 / 16);
    set(&t, neighbours, 256, 256);
    cr_expect_leq(least(&t), MOST * MOST * 3 / 8);
    cr_expect_eq(attune__order_cells(t.bits[0], WORDS, MOST, WORDS), MOST * MOST * 3 / 4);
}
