/* SPDX-License-Identifier: MIT */
/* Texts: errors, equivalent spellings, and the limits. */
#include "expr/common.h"
#include "support/presets.h"

#include <stdio.h>
#include <stdlib.h>

static const attune_symbol symbols[] = {
    {"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},    {"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F16, 2},
    {"keep", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BOOL, 0},  {"width", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
    {"heat", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0}, {"slope", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
};
#define SYMBOLS (sizeof symbols / sizeof symbols[0])

#define M ATTUNE_EXPR_MASK
#define S ATTUNE_EXPR_SCORE

Test(parse, errors)
{
    /* the place, words of the message, words of the hint */
    static const struct {
        attune_expr_kind kind;
        const char *text;
        unsigned line, column;
        const char *message, *hint;
    } cases[] = {
        {M, "(q >= kv & q < 3)", 1, 10, "expected ')' but found '&'", "&&"},
        {M, "q >= kv & q < 3", 1, 9, "expected an operator or the end but found '&'", "&&"},
        {M, "q >= kv | q < 3", 1, 9, "found '|'", "||"},
        {M, "q >= kv and q < 3", 1, 9, "found 'and'", "&&"},
        {M, "q >= kv or q < 3", 1, 9, "found 'or'", "||"},
        {M, "not causal", 1, 1, "'not'", "!"},
        {M, "q = kv", 1, 3, "found '='", "=="},
        {M, "q ** 2 > kv", 1, 3, "found '**'", "pow"},
        {S, "score ^ 2", 1, 7, "found '^'", "pow"},
        {M, "q >= kv;", 1, 8, "found ';'", "single value"},
        {M, "q >= q_len >= 1", 1, 12, "do not chain", "a < b && b < c"},
        {M, "q_idx >= kv", 1, 1, "unknown name 'q_idx'", "did you mean q?"},
        {M, "q >= kv_idx", 1, 6, "unknown name 'kv_idx'", "did you mean kv?"},
        {M, "q >= k", 1, 6, "unknown name 'k'", "did you mean kv?"},
        {M, "widht > q", 1, 1, "unknown name 'widht'", "did you mean width?"},
        {M, "casual", 1, 1, "unknown name 'casual'", "did you mean causal?"},
        {M, "zebra > q", 1, 1, "unknown name 'zebra'", "b, h, q, kv, h_kv, q_len, kv_len, row and the symbols doc"},
        {S, "score * inf", 1, 9, "unknown name 'inf'", "1.0 / 0.0"},
        {M, "score > 0", 1, 1, "'score' stands in score expressions only", NULL},
        {M, "q > kv && softcap(3)", 1, 11, "softcap(c) changes a score", NULL},
        {M, "q - kv", 1, 1, "a mask must be bool, this is i32", "compare it"},
        {M, "heat * 2", 1, 1, "a mask must be bool, this is f32", "compare it"},
        {S, "q > kv", 1, 1, "a score must be f32, this is bool", "select"},
        {S, "score + (q > kv)", 1, 9, "an operand of + must be a number, this is bool", "select"},
        {S, "-(q > kv)", 1, 2, "the operand of - must be a number", "select"},
        {M, "!q", 1, 2, "the operand of ! must be bool, this is i32", "compare it"},
        {M, "q && causal", 1, 1, "an operand of && must be bool", "compare it"},
        {M, "causal == 1", 1, 1, "cannot compare bool with i32", NULL},
        {S, "q ? 1 : 2", 1, 1, "a condition must be bool", "compare it"},
        {S, "causal ? 1 : causal", 1, 14, "the branches of a choice are i32 and bool", NULL},
        {S, "causal ? 1", 1, 11, "expected ':' but found the end", NULL},
        {M, "doc > 1", 1, 1, "'doc' is an array and needs an index", "doc[...]"},
        {M, "doc[q, kv] == 1", 1, 1, "'doc' has 1 dimension but is read with 2 indices", NULL},
        {M, "keep[q, kv] && keep[q]", 1, 16, "'keep' has 2 dimensions but is read with 1 index", "first use"},
        {M, "doc[heat] == 1", 1, 5, "an index must be i32, this is f32", NULL},
        {M, "doc[q) == 1", 1, 6, "expected ']' but found ')'", NULL},
        {M, "doc[q > 1] == 1", 1, 5, "an index must be i32, this is bool", "select"},
        {M, "doc(q) == 1", 1, 1, "'doc' is an array", NULL},
        {M, "width[q] == 1", 1, 1, "'width' is a parameter", NULL},
        {M, "q[1] == 1", 1, 1, "'q' is not an array", NULL},
        {M, "q(1) == 1", 1, 1, "'q' is not a function", NULL},
        {S, "tanh score", 1, 1, "tanh is a function and needs its arguments", NULL},
        {S, "tanh(score, 1)", 1, 1, "tanh takes 1 argument but has 2", NULL},
        {S, "min(score)", 1, 1, "min takes 2 arguments or more but has 1", NULL},
        {S, "tanh()", 1, 1, "tanh takes 1 argument but has 0", NULL},
        {S, "tanh(causal)", 1, 6, "an argument of tanh must be a number", "select"},
        {M, "window", 1, 1, "does not take 0 arguments: window(n)", NULL},
        {M, "kv < 3 || causal(1, 2)", 1, 11, "causal does not take 2 arguments: causal, causal(offset)", NULL},
        {M, "document(3)", 1, 1, "in the preset document(ids): ids must be the name of a capture", NULL},
        {M, "window(doc)", 1, 1, "n must be a value, but 'doc' is an array", NULL},
        {M, "document(bias)", 1, 1, "'bias' has 2 dimensions", NULL},
        {M, "window(causal)", 1, 1, "in the preset window(n): an operand of < must be a number", NULL},
        {M, "q > 2147483648", 1, 5, "does not fit i32", "decimal point"},
        {M, "q > 99999999999999999999", 1, 5, "does not fit i32", "decimal point"},
        {M, "q - 2147483648 > 1", 1, 5, "does not fit i32", NULL},
        {S, "1e39", 1, 1, "1e39 does not fit f32", "1.0 / 0.0"},
        {S, "1.5f", 1, 4, "expected an operator after the number but found 'f'", "no suffix"},
        {S, "0x10", 1, 2, "found 'x'", NULL},
        {S, "score +", 1, 8, "expected a value but found the end", NULL},
        {S, "score + * 2", 1, 9, "expected a value but found '*'", NULL},
        {S, "(score", 1, 7, "expected ')' but found the end", NULL},
        {S, "score)", 1, 6, "found ')'", NULL},
        {S, "score 2", 1, 7, "expected an operator or the end but found '2'", NULL},
        {S, "", 1, 1, "the text is empty", NULL},
        {S, " \t ", 1, 1, "the text is empty", NULL},
        {M, "q > $", 1, 5, "unexpected character '$'", NULL},
        {M, "q > \xc3\xa9", 1, 5, "unexpected byte 0xc3", "ASCII"},
        {M, "q > \x01", 1, 5, "unexpected byte 0x01", "ASCII"},
        {M, "q >\n\t kv +\n  &", 3, 3, "expected a value but found '&'", NULL},
        {M, "q >\tkv\t& q", 1, 8, "found '&'", NULL},
        {S, "score // x", 1, 7, "found '//'", "floors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attune_expr *expr = (attune_expr *)1;
        attune_status status =
            attune__expr_parse(&attune__default_allocator, cases[i].kind, cases[i].text, symbols, SYMBOLS, &expr);
        cr_assert(status == ATTUNE_PARSE_ERROR && !expr, "%s: %d", cases[i].text, (int)status);
        const char *message = attune_last_error();
        char place[64];
        snprintf(place, sizeof place, "line %u, column %u: ", cases[i].line, cases[i].column);
        cr_assert(!strncmp(message, place, strlen(place)), "%s\n%s\nexpected %s", cases[i].text, message, place);
        cr_assert(strstr(message, cases[i].message), "%s\n%s", cases[i].text, message);
        const char *hint = strstr(message, "\nhint: ");
        cr_assert(!cases[i].hint || (hint && strstr(hint, cases[i].hint)), "%s\n%s", cases[i].text, message);
        const char *line = strchr(message, '\n');
        cr_assert(line);
        /* the line is shown, in characters of one column */
        const char *from = cases[i].text;
        for (unsigned n = 1; n < cases[i].line; n++)
            from = strchr(from, '\n') + 1;
        char shown[160] = "  ";
        const size_t length = strcspn(from, "\n");
        for (size_t c = 0; c < length; c++)
            shown[2 + c] = from[c] == '\t' ? ' ' : from[c] >= ' ' && from[c] <= '~' ? from[c] : '?';
        cr_assert(!strncmp(line + 1, shown, 2 + length) && line[3 + length] == '\n', "%s\n%s", cases[i].text, message);
        /* the caret is below its column */
        const char *caret = strchr(line + 1, '\n');
        cr_assert(caret);
        size_t column = strspn(caret + 1, " ");
        cr_assert(caret[1 + column] == '^' && column == cases[i].column + 1, "%s\n%s", cases[i].text, message);
    }
    cr_log_info("%zu texts refused", sizeof cases / sizeof cases[0]);
}

Test(parse, long_lines_show_a_window)
{
    char text[2100];
    size_t n = 0;
    for (int i = 0; i < 100; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "q > %d && ", i);
    size_t column = n + 1;
    n += (size_t)snprintf(text + n, sizeof text - n, "# && ");
    for (int i = 0; i < 60; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "kv > %d && ", i);
    attune_expr *expr;
    cr_assert(attune__expr_parse(&attune__default_allocator, M, text, NULL, 0, &expr) == ATTUNE_PARSE_ERROR);
    const char *message = attune_last_error();
    unsigned found;
    cr_assert(sscanf(message, "line 1, column %u:", &found) == 1 && found == column, "%s", message);
    const char *line = strchr(message, '\n') + 1, *caret = strchr(line, '\n') + 1;
    cr_assert(caret - line < 120, "%s", message);
    cr_assert(line[strcspn(caret, "^")] == '#', "%s", message);
}

static bool same(attune_expr_kind kind, const char *a, const char *b)
{
    attune_expr *x = parse_with(kind, a, symbols, SYMBOLS), *y = parse_with(kind, b, symbols, SYMBOLS);
    bool equal = !memcmp(&x->hash, &y->hash, sizeof x->hash) && x->node_count == y->node_count;
    attune__expr_release(x);
    attune__expr_release(y);
    return equal;
}

/* Different on purpose, or the same on purpose. */
Test(parse, precedence_and_simplification)
{
    static const struct {
        attune_expr_kind kind;
        bool equal;
        const char *a, *b;
    } cases[] = {
        {M, true, "q > 1 || kv > 2 && h > 3", "q > 1 || (kv > 2 && h > 3)"},
        {M, false, "q > 1 || kv > 2 && h > 3", "(q > 1 || kv > 2) && h > 3"},
        {M, true, "q + 1 > kv * 2", "(q + 1) > (kv * 2)"},
        {M, true, "q > 1 == kv > 2", "(q > 1) == (kv > 2)"},
        {M, true, "!causal && h > 1", "(!causal) && h > 1"},
        {S, true, "q - kv - h", "(q - kv) - h"},
        {S, false, "q - kv - h", "q - (kv - h)"},
        {S, true, "q / kv * h", "(q / kv) * h"},
        {S, true, "-q % 3", "(-q) % 3"},
        {S, true, "causal ? 1 : h > 2 ? 2 : 3", "causal ? 1 : (h > 2 ? 2 : 3)"},
        {S, true, "causal ? h > 2 ? 1 : 2 : 3", "causal ? (h > 2 ? 1 : 2) : 3"},
        {M, true, "causal && window(9)", "window(9) && causal"},
        {M, true, "q >= kv", "kv <= q"},
        {M, true, "!(q < kv)", "q >= kv"},
        {M, true, "!!causal", "causal"},
        {M, true, "causal && true", "causal"},
        {M, true, "causal && false", "false"},
        {M, true, "causal || true", "true"},
        {M, true, "causal && causal", "causal"},
        {M, true, "causal && !causal", "false"},
        {M, true, "causal || causal && h > 1", "causal"},
        {M, true, "q == q", "true"},
        {M, true, "q < q", "false"},
        {M, false, "heat == heat", "true"},
        {M, false, "!(heat < 1)", "heat >= 1"},
        {M, true, "!(heat == 1)", "heat != 1"},
        {M, true, "q + 1 + 2 > 0", "q + 3 > 0"},
        {M, true, "q - 3 + 3 > 0", "q > 0"},
        {M, true, "q * 1 + 0 > 0", "q > 0"},
        {M, true, "q * 0 == 0", "true"},
        {M, true, "kv + q == 1", "1 == q + kv"},
        {M, true, "q + -kv > 3", "q - kv > 3"},
        {M, true, "(causal ? true : false)", "causal"},
        {M, true, "(causal ? h > 1 : false)", "causal && h > 1"},
        {M, true, "(causal ? h > 1 : h > 1)", "h > 1"},
        {M, true, "(2 > 1 ? causal : h > 1)", "causal"},
        {S, true, "score * 1", "score"},
        {S, false, "score + 0.0", "score"},
        {S, false, "score * 0", "0.0"},
        {S, true, "score - 0.0", "score"},
        {S, true, "score + score * 0.5", "0.5 * score + score"},
        {S, false, "score + heat + q", "score + (heat + q)"},
        {S, true, "1.0 / 3.0", "0.3333333333333333"},
        {S, false, "1.0 / 3.0", "0.333333343"},
        {M, true, "heat < 1.0 / 3.0", "heat < 0.333333343"},
        {S, false, "score * 0.1", "score * 0.100000001"},
        {S, false, "0.1 + 0.2", "0.3"},
        {S, false, "1e38 * 10.0", "1.0 / 0.0"},
        {S, true, "floor(q)", "q"},
        {S, true, "min(q, kv, h)", "min(min(kv, q), h)"},
        {S, true, "2 * 3 + 4 / 3 - 7 % 4 - (-7) / 2", "8"},
        {S, true, "-2147483648", "-2147483647 - 1"},
        {S, true, ".5 + 5e-1", "1.0"},
        {S, true, "select(q > 1, 2, 3.0)", "q > 1 ? 2.0 : 3"},
        {S, true, "heat", "heat"},
        {M, true, "keep[b, q] && causal", "causal && keep[b, q]"},
        {M, true, "doc[q] == doc[kv]", "doc[kv] == doc[q]"},
        {M, true, "q == kv && q != kv", "false"},
        {M, true, "q != kv || q == kv", "true"},
        {M, false, "q == kv && q != h", "false"},
        {M, false, "q == kv || h != kv", "true"},
        {M, true, "heat < 1.5 && !(heat < 1.5)", "false"},
        {M, true, "!(heat < 1.5) || heat < 1.5", "true"},
        {M, false, "heat < 1.5 || 1.5 <= heat", "true"},
        {M, true, "q < kv == kv <= q", "false"},
        {M, true, "q < kv != kv <= q", "true"},
        {M, true, "q <= q && q != q", "false"},
        {M, true, "causal == true", "causal"},
        {M, true, "causal != true", "!causal"},
        {M, true, "causal == false", "!causal"},
        {M, true, "causal != false", "causal"},
        {M, true, "causal == causal", "true"},
        {M, true, "causal == (h > 1)", "(h > 1) == causal"},
        {M, true, "causal && (causal || h > 1)", "causal"},
        {M, true, "(h > 1 || causal) && causal", "causal"},
        {M, true, "causal && (causal && h > 1)", "causal && h > 1"},
        {M, true, "(h > 1 || causal) || causal", "causal || h > 1"},
        {M, true, "(causal ? causal : h > 1)", "causal || h > 1"},
        {M, true, "(causal ? h > 1 : causal)", "causal && h > 1"},
        {M, true, "(causal ? false : h > 1)", "!causal && h > 1"},
        {M, true, "(causal ? h > 1 : true)", "!causal || h > 1"},
        {M, true, "(causal ? true : h > 1)", "causal || h > 1"},
        {S, true, "!(heat < 1) ? 1 : 2", "heat < 1 ? 2 : 1"},
        {S, true, "heat < 1 ? q : q", "q"},
        {S, true, "1 < 2 ? q : kv", "q"},
        {S, true, "1 > 2 ? q : kv", "kv"},
        {S, true, "-(-q)", "q"},
        {S, true, "-(-score)", "score"},
        {S, true, "-(q - kv)", "kv - q"},
        {S, false, "-(score - heat)", "heat - score"},
        {S, true, "abs(abs(q))", "abs(q)"},
        {S, true, "abs(-score)", "abs(score)"},
        {S, true, "floor(ceil(score))", "ceil(score)"},
        {S, true, "ceil(floor(score))", "floor(score)"},
        {S, true, "floor(q * 1.0)", "q"},
        {M, true, "floor(q) / 2 + ceil(kv) / 2 == 0", "q / 2 + kv / 2 == 0"},
        {S, true, "3 - q + 2", "5 - q"},
        {S, true, "-q + kv", "kv - q"},
        {S, true, "q - -kv", "kv + q"},
        {S, true, "0 - q", "-q"},
        {S, true, "q - q", "0"},
        {S, true, "q - 3", "-3 + q"},
        {S, true, "q * -1", "-q"},
        {S, true, "0 * q", "0"},
        {S, true, "q / 1", "q"},
        {S, true, "0 / q + q / 0", "0"},
        {S, true, "q % 1 + q % -1 + q % 0 + 0 % q", "0"},
        {S, false, "q % 2", "0"},
        {S, false, "q / -1", "-q"},
        {S, true, "score + -0.0", "score"},
        {S, true, "1.0 * score / 1", "score"},
        {S, false, "score - -0.0", "score"},
        {S, false, "score / -1.0", "-score"},
        {S, true, "min(q, q) + max(score, score)", "q + score"},
        {S, true, "max(q, kv)", "max(kv, q)"},
        {S, false, "min(score, heat)", "min(heat, score)"},
        {S, true, "score * heat + q", "q + heat * score"},
        {S, false, "score - heat", "heat - score"},
        {S, true, "sqrt(4.0) + rsqrt(0.25)", "4.0"},
        {S, false, "exp(0.0)", "1.0"},
        {S, false, "exp2(0.0)", "1.0"},
        {S, false, "log(1.0)", "0.0"},
        {S, false, "log2(1.0)", "0.0"},
        {S, false, "tanh(0.0)", "0.0"},
        {S, false, "sigmoid(0.0)", "0.5"},
        {S, false, "sin(0.0)", "0.0"},
        {S, false, "cos(0.0)", "1.0"},
        {S, false, "pow(1.0, 2.0)", "1.0"},
        /* presets */
        {M, true, "causal", "q >= kv"},
        {M, true, "causal()", "q >= kv"},
        {M, true, "causal(kv_len - q_len)", "q + (kv_len - q_len) >= kv"},
        {M, true, "window(2 + 3)", "q >= kv && q - kv < 5"},
        {M, true, "dilated(8, 1 + 1)", "abs(q - kv) <= 8 && (q - kv) % 2 == 0"},
        {M, true, "document(doc)", "doc[q] == doc[kv]"},
        {M, true, "causal && document( doc )", "doc[q] == doc[kv] && q >= kv"},
        {S, true, "softcap(50)", "50 * tanh(score / 50)"},
        {S, true, "softcap(heat + 1)", "(heat + 1) * tanh(score / (heat + 1))"},
        {S, true, "alibi(slope)", "score + slope[h] * (kv - q)"},
        {S, true, "relative_bias(bias, 47)", "score + bias[q - kv + 47, h]"},
        {S, true, "causal ? softcap(20) : score - 1", "q >= kv ? 20 * tanh(score / 20) : score - 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_assert(same(cases[i].kind, cases[i].a, cases[i].b) == cases[i].equal, "%s and %s %s", cases[i].a, cases[i].b,
                  cases[i].equal ? "differ" : "are the same");
    cr_log_info("%zu pairs", sizeof cases / sizeof cases[0]);
}

Test(parse, every_preset)
{
    cr_assert(attune_preset_count() >= 20);
    static const attune_symbol captures[] = {
        {"i1", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},  {"i2", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 2},
        {"b2", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BOOL, 2}, {"f2", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 2},
        {"g1", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},  {"x", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0},
        {"n", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
    };
    cr_assert_eq(attune_preset_count(), preset_use_count);
    for (uint32_t i = 0; i < attune_preset_count(); i++) {
        attune_preset preset = {.struct_size = sizeof preset};
        cr_assert(attune_preset_get(i, &preset) == ATTUNE_OK);
        cr_assert(preset.struct_size == sizeof preset && preset.text && preset.description);
        size_t name = strcspn(preset.signature, "(");
        cr_assert(!strncmp(preset_uses[i], preset.signature, name));
        attune__expr_release(parse_with(preset.kind, preset_uses[i], captures, sizeof captures / sizeof captures[0]));
    }
    attune_preset preset = {.struct_size = sizeof preset};
    cr_assert(attune_preset_get(attune_preset_count(), &preset) == ATTUNE_INVALID_ARGUMENT);
    cr_assert(attune_preset_get(0, NULL) == ATTUNE_INVALID_ARGUMENT);
}

/* The last query is aligned with the last key, whatever the lengths; a row is an interval, which kernels find without a
 * mask.
 */
Test(parse, causal_bottom_right)
{
    attune_expr *expr = parse_with(ATTUNE_EXPR_MASK, "causal_bottom_right", NULL, 0);
    uint32_t runs;
    cr_assert(attune__interval_rows(expr, &runs) && !runs);
    static const int32_t lengths[][2] = {
        {1, 1}, {1, 9}, {4, 9}, {9, 9}, {9, 4}, {2, INT32_MAX}, {INT32_MAX, INT32_MAX}};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const int32_t q_len = lengths[i][0], kv_len = lengths[i][1];
        for (int32_t back = 0; back < 4 && back < q_len; back++)
            for (int32_t past = 0; past < 6 && past < kv_len; past++) {
                const attune_point point = {
                    .q = q_len - 1 - back, .kv = kv_len - 1 - past, .q_len = q_len, .kv_len = kv_len};
                float allowed;
                cr_assert(attune_expr_evaluate(expr, &point, NULL, 0, NULL, 0, &allowed) == ATTUNE_OK);
                cr_assert((allowed != 0) == (past >= back), "%d x %d: %d, %d", q_len, kv_len, back, past);
            }
    }
    attune__expr_release(expr);
}

/* NATTEN: every query sees (2 r + 1)^2 keys. */
Test(parse, neighborhood_has_full_windows)
{
    attune_expr *expr = parse_with(M, "neighborhood2d(9, 7, 2)", NULL, 0);
    for (int32_t q = 0; q < 63; q++) {
        int seen = 0;
        for (int32_t kv = 0; kv < 80; kv++)
            seen += attune__expr_point(expr, &(attune__bindings){NULL, NULL}, &(attune_point){.q = q, .kv = kv}).i;
        cr_assert_eq(seen, 25);
    }
    attune__expr_release(expr);
}

static void refused(attune_status wanted, const char *words, attune_expr_kind kind, const char *text,
                    const attune_symbol *list, uint32_t count)
{
    attune_expr *expr = (attune_expr *)1;
    attune_status status = attune__expr_parse(&attune__default_allocator, kind, text, list, count, &expr);
    cr_assert(status == wanted && !expr && strstr(attune_last_error(), words), "%d: %s", (int)status,
              attune_last_error());
}

Test(parse, caps)
{
    static char text[8192];
    memset(text, ' ', ATTUNE_EXPR_MAX_LENGTH + 1);
    memcpy(text, "q", 1);
    refused(ATTUNE_PARSE_ERROR, "the text has 4097 bytes; the limit is 4096", S, text, NULL, 0);
    text[ATTUNE_EXPR_MAX_LENGTH] = '\0';
    attune__expr_release(parse_with(S, text, NULL, 0));
    for (int depth = ATTUNE_EXPR_MAX_DEPTH - 2; depth < ATTUNE_EXPR_MAX_DEPTH + 2; depth++) {
        snprintf(text, sizeof text, "%.*sq%.*s", depth,
                 "((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((", depth,
                 "))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))");
        if (depth < ATTUNE_EXPR_MAX_DEPTH)
            attune__expr_release(parse_with(S, text, NULL, 0));
        else
            refused(ATTUNE_PARSE_ERROR, "more than 64 levels deep", S, text, NULL, 0);
    }
    memset(text, '-', 200);
    memcpy(text + 200, "q", 2);
    refused(ATTUNE_PARSE_ERROR, "more than 16 signs", S, text, NULL, 0);

    /* 1,100 different sums */
    size_t n = 0;
    for (int i = 0; n < 4000; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%sq*%d", i ? "%" : "", i + 2);
    attune_expr *expr;
    attune_status status = attune__expr_parse(&attune__default_allocator, S, text, NULL, 0, &expr);
    cr_assert(status == ATTUNE_PARSE_ERROR && strstr(attune_last_error(), "the limit is 1024"), "%s",
              attune_last_error());

    attune_symbol many[40];
    char names[40][16];
    n = 0;
    for (int i = 0; i < 40; i++) {
        snprintf(names[i], sizeof names[i], "p%d", i);
        many[i] = (attune_symbol){names[i], ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0};
        if (i < 17)
            n += (size_t)snprintf(text + n, sizeof text - n, "%sp%d", i ? "+" : "", i);
        if (i == 15) {
            expr = parse_with(S, text, many, 16);
            cr_assert_eq(expr->symbol_count, 16);
            attune__expr_release(expr);
        }
    }
    refused(ATTUNE_PARSE_ERROR, "'p16' is symbol number 17", S, text, many, 40);
    /* declared and not used: dropped */
    expr = parse_with(S, "p39", many, 40);
    cr_assert(expr->symbol_count == 1 && !strcmp(expr->symbols[0].name, "p39"));
    attune__expr_release(expr);
}

Test(parse, symbols_are_checked)
{
#define ONE(...) (attune_symbol[]){{__VA_ARGS__}}, 1
    attune_status bad = ATTUNE_INVALID_ARGUMENT;
    refused(bad, "is NULL", S, "q", ONE(NULL, ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1));
    refused(bad, "is no name", S, "q", ONE("1a", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1));
    refused(bad, "is no name", S, "q", ONE("", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1));
    refused(bad, "is no name", S, "q", ONE("a-b", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1));
    refused(
        bad, "is no name", S, "q",
        ONE("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1));
    refused(bad, "is a variable", S, "q", ONE("kv", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1));
    refused(bad, "is a function", S, "q", ONE("tanh", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1));
    refused(bad, "is a preset", S, "q", ONE("window", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1));
    refused(bad, "is a word", S, "q", ONE("true", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1));
    refused(bad, "is a symbol", S, "q", ONE("gather_q_len", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0));
    refused(bad, "is a symbol", S, "q", ONE("segment_kv_start", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0));
    refused(bad, "parameters are i32 or f32", S, "q", ONE("a", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F16, 0));
    refused(bad, "parameters have rank 0", S, "q", ONE("a", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 1));
    refused(bad, "captures are i32", S, "q", ONE("a", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F64, 1));
    refused(bad, "the limit is 4", S, "q", ONE("a", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 5));
    refused(bad, "kind is 9", S, "q", ONE("a", (attune_symbol_kind)9, ATTUNE_F32, 1));
    attune_symbol twice[] = {{"a", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1}, {"a", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1}};
    refused(bad, "both named 'a'", S, "q", twice, 2);
}

static void unbound(const char *words, const char *text, const attune_host_capture *capture, uint32_t count,
                    const attune_parameter *parameter, uint32_t parameter_count)
{
    attune_symbol list[] = {{"a", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I64, 2},
                            {"n", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
                            {"x", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0}};
    attune_expr *expr = parse_with(S, text, list, 3);
    attune_array arrays[4];
    attune__value values[4];
    attune_status status = attune__bindings_resolve(expr, capture, count, parameter, parameter_count, arrays, values);
    cr_assert(words ? status == ATTUNE_INVALID_ARGUMENT && strstr(attune_last_error(), words) != NULL
                    : status == ATTUNE_OK,
              "%s", attune_last_error());
    attune__expr_release(expr);
}

Test(parse, bindings_are_checked)
{
    static const int64_t data[6] = {1, 2, 3, 4, 5, INT64_C(1) << 40};
#define CAPTURE(...) &(attune_host_capture){"a", {__VA_ARGS__}}, 1
    unbound("'a', which is not among those given: none", "a[q, kv]", NULL, 0, NULL, 0);
    unbound("not among those given: 'b'", "a[q, kv]", &(attune_host_capture){.name = "b"}, 1, NULL, 0);
    unbound("is f32, but was declared as i64", "a[q, kv]", CAPTURE(data, ATTUNE_F32, 2, {2, 3}, {0}), NULL, 0);
    unbound("has rank 1", "a[q, kv]", CAPTURE(data, ATTUNE_I64, 1, {6}, {0}), NULL, 0);
    unbound("has size -1", "a[q, kv]", CAPTURE(data, ATTUNE_I64, 2, {2, -1}, {0}), NULL, 0);
    unbound("has no data", "a[q, kv]", CAPTURE(NULL, ATTUNE_I64, 2, {2, 1}, {0}), NULL, 0);
    unbound("not aligned", "a[q, kv]", CAPTURE((const char *)data + 1, ATTUNE_I64, 2, {1, 1}, {0}), NULL, 0);
    unbound("holds 1099511627776", "a[q, kv]", CAPTURE(data, ATTUNE_I64, 2, {2, 3}, {0}), NULL, 0);
    unbound("address space", "a[q, kv]", CAPTURE(data, ATTUNE_I64, 2, {INT64_MAX, INT64_MAX}, {0}), NULL, 0);
    unbound(NULL, "a[q, kv]", CAPTURE(data, ATTUNE_I64, 2, {2, 2}, {2, 1}), NULL, 0);
    unbound(NULL, "a[q, kv]", CAPTURE(NULL, ATTUNE_I64, 2, {2, 0}, {0}), NULL, 0);
    unbound("parameter 'n'", "n", NULL, 0, NULL, 0);
    unbound("'n' is 1.5", "n", NULL, 0, &(attune_parameter){"n", 1.5}, 1);
    unbound("'n' is 3e+09", "n", NULL, 0, &(attune_parameter){"n", 3e9}, 1);
    unbound("'n' is nan", "n", NULL, 0, &(attune_parameter){"n", (double)NAN}, 1);
    unbound("does not fit f32", "x", NULL, 0, &(attune_parameter){"x", 1e300}, 1);
    unbound(NULL, "x + n", NULL, 0, (attune_parameter[]){{"n", -5}, {"x", 1e30}}, 2);
}

Test(parse, combine)
{
    attune_expr *causal = parse_with(M, "causal", symbols, SYMBOLS);
    attune_expr *document = parse_with(M, "document(doc) && kv < width", symbols, SYMBOLS);
    attune_expr *both = parse_with(M, "causal && (document(doc) && kv < width)", symbols, SYMBOLS);
    attune_symbol other = {"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_U8, 1};
    attune_expr *clash = parse_with(M, "document(doc)", &other, 1), *made;
    const attune_allocator *a = &attune__default_allocator;
    cr_assert(attune__expr_combine(a, ATTUNE__OP_AND, causal, document, &made) == ATTUNE_OK);
    cr_assert(!memcmp(&made->hash, &both->hash, sizeof made->hash));
    attune__expr_release(made);
    cr_assert(attune__expr_combine(a, ATTUNE__OP_NOT, causal, NULL, &made) == ATTUNE_OK);
    attune_expr *back;
    cr_assert(attune__expr_combine(a, ATTUNE__OP_NOT, made, NULL, &back) == ATTUNE_OK);
    cr_assert(!memcmp(&back->hash, &causal->hash, sizeof back->hash));
    attune__expr_release(back);
    attune__expr_release(made);
    cr_assert(attune__expr_combine(a, ATTUNE__OP_OR, document, clash, &made) == ATTUNE_INVALID_ARGUMENT && !made);
    cr_assert(strstr(attune_last_error(), "'doc' is a capture of i32"), "%s", attune_last_error());
    attune__expr_release(attune__expr_retain(causal));
    attune__expr_release(causal);
    attune__expr_release(document);
    attune__expr_release(both);
    attune__expr_release(clash);
    attune__expr_release(NULL);
}

static bool same_nodes(const attune_expr *a, const attune_expr *b)
{
    for (uint32_t i = 0; i < a->node_count; i++) {
        const attune__node *m = &a->nodes[i], *n = &b->nodes[i];
        if (m->op != n->op || m->type != n->type || m->uses != n->uses || m->value.i != n->value.i ||
            memcmp(&m->real, &n->real, sizeof m->real) || memcmp(m->arg, n->arg, sizeof m->arg) ||
            m->arg_count != n->arg_count)
            return false;
    }
    return true;
}

/* Text and hash survive printing. */
Test(parse, printed_text_parses_back)
{
    static random_expr e;
    static char text[1 << 16];
    uint64_t count = scaled(100000), seed = test_seed() + 1;
    uint32_t most = 0;
    for (uint64_t i = 0; i < count; i++) {
        random_expr_make(&e, seed + i, i % 2 ? M : S, 1 + (uint32_t)(i % 60));
        attune_expr *expr = parse_with(e.kind, e.text, e.symbols, e.symbol_count);
        cr_assert(attune__expr_print(expr, ATTUNE_EXPR_TEXT, text, sizeof text, NULL) == ATTUNE_OK);
        attune_expr *again = NULL;
        cr_assert(attune__expr_parse(&attune__default_allocator, e.kind, text, e.symbols, e.symbol_count, &again) ==
                      ATTUNE_OK,
                  "%s\n%s\n%s", e.text, text, attune_last_error());
        cr_assert(!memcmp(&expr->hash, &again->hash, sizeof expr->hash) && expr->node_count == again->node_count &&
                      same_nodes(expr, again),
                  "%s\n%s", e.text, text);
        most = expr->node_count > most ? expr->node_count : most;
        attune__expr_release(expr);
        attune__expr_release(again);
    }
    cr_log_info("%llu expressions, up to %u nodes", (unsigned long long)count, most);
}

/* Cut, doubled and changed texts: anything but a crash. */
/* Read as a double and rounded, a text that is short enough for a float may be its neighbour. */
Test(parse, printed_floats_parse_back)
{
    static const char *const texts[] = {"7.0385309e-26 < kv", "kv < 8.589973e9", "1.17549435e-38 < kv"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        attune_expr *expr[2] = {NULL, NULL};
        char text[256];
        cr_assert_eq(attune__expr_parse(&attune__default_allocator, ATTUNE_EXPR_MASK, texts[i], NULL, 0, &expr[0]),
                     ATTUNE_OK);
        cr_assert_eq(attune__expr_print(expr[0], ATTUNE_EXPR_TEXT, text, sizeof text, NULL), ATTUNE_OK);
        cr_assert_eq(attune__expr_parse(&attune__default_allocator, ATTUNE_EXPR_MASK, text, NULL, 0, &expr[1]),
                     ATTUNE_OK);
        cr_expect(!memcmp(&expr[0]->hash, &expr[1]->hash, sizeof expr[0]->hash), "%s prints as %s", texts[i], text);
        attune__expr_release(expr[0]);
        attune__expr_release(expr[1]);
    }
}

/* Constants that are no finite numbers have no digits. */
Test(parse, listings_of_infinity_and_nan)
{
    static const struct {
        const char *text, *listed;
    } listings[] = {
        {"kv <= q ? score : -1.0 / 0.0", " -inf"}, {"score + 1.0 / 0.0", " inf"}, {"score + 0.0 / 0.0", " nan"}};
    for (size_t i = 0; i < sizeof listings / sizeof listings[0]; i++) {
        attune_expr *expr = NULL;
        char text[1024];
        cr_assert_eq(
            attune__expr_parse(&attune__default_allocator, ATTUNE_EXPR_SCORE, listings[i].text, NULL, 0, &expr),
            ATTUNE_OK);
        cr_assert_eq(attune__expr_print(expr, ATTUNE_EXPR_IR, text, sizeof text, NULL), ATTUNE_OK);
        cr_expect(strstr(text, listings[i].listed), "%s: %s", listings[i].text, text);
        attune__expr_release(expr);
    }
}

/* Each kind of node, a line each, operands by their numbers. */
Test(parse, listing_of_each_node)
{
    attune_expr *expr =
        parse_with(S, "keep[b, q] && true == (width > 3) ? score * 0.5 : bias[q - kv, h] + heat", symbols, SYMBOLS);
    char text[2048];
    cr_assert_eq(attune__expr_print(expr, ATTUNE_EXPR_IR, text, sizeof text, NULL), ATTUNE_OK);
    cr_expect_str_eq(text, "0 i32 var b\n1 i32 var q\n2 bool capture keep:bool 0 1\n3 i32 const 3\n"
                           "4 i32 param width:i32\n5 bool lt 3 4\n6 bool and 2 5\n7 f32 var score\n"
                           "8 f32 const 0.5\n9 f32 mul 7 8\n10 f32 param heat:f32\n11 i32 var kv\n12 i32 sub 1 11\n"
                           "13 i32 var h\n14 f32 capture bias:f16 12 13\n15 f32 add 10 14\n16 f32 select 6 9 15\n");
    attune__expr_release(expr);
    expr = parse_with(M, "true", NULL, 0);
    cr_assert_eq(attune__expr_print(expr, ATTUNE_EXPR_IR, text, sizeof text, NULL), ATTUNE_OK);
    cr_expect_str_eq(text, "0 bool const true\n");
    attune__expr_release(expr);
}

Test(parse, damaged_texts)
{
    static random_expr e;
    uint64_t count = scaled(60000), seed = test_seed() + 2, refusals = 0;
    for (uint64_t i = 0; i < count; i++) {
        random_expr_make(&e, seed + i / 8, i % 2 ? M : S, 1 + (uint32_t)(i % 30));
        uint64_t state = i;
        size_t length = strlen(e.text);
        for (int change = 0; change < 3; change++)
            e.text[random_expr_next(&state) % length] =
                "qkvb()[]+-*/%<>=!&|?:,.0123456789 e_\n\x80"[random_expr_next(&state) % 39];
        if (random_expr_next(&state) % 4 == 0)
            e.text[random_expr_next(&state) % length] = '\0';
        attune_expr *expr;
        attune_status status =
            attune__expr_parse(&attune__default_allocator, e.kind, e.text, e.symbols, e.symbol_count, &expr);
        cr_assert(status == ATTUNE_OK || (status == ATTUNE_PARSE_ERROR && strlen(attune_last_error()) > 10));
        refusals += status != ATTUNE_OK;
        attune__expr_release(expr);
    }
    cr_log_info("%llu texts, %llu refused", (unsigned long long)count, (unsigned long long)refusals);
}

/* Fails the allocation after `before` others; counts those that are not released. */
typedef struct failing {
    int before, live;
} failing;

static void *failing_alloc(void *user, size_t size, size_t alignment)
{
    failing *f = user;
    if (f->before-- == 0)
        return NULL;
    f->live++;
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void failing_release(void *user, void *memory)
{
    ((failing *)user)->live--;
    free(memory);
}

/* Every allocation fails once: OUT_OF_HOST_MEMORY, nothing leaks. */
Test(parse, memory_failures)
{
    failing state = {0, 0};
    attune_allocator allocator = {failing_alloc, failing_release, &state};
    static int32_t data[100];
    int number = 0;
    for (bool done = false; !done; number++) {
        attune_expr *expr = NULL, *joined = NULL;
        attune__ranges *ranges = NULL;
        attune_array array;
        attune__value value;
        char text[256];
        state.before = number;
        attune_status status = attune__expr_parse(&allocator, M, "causal && document(doc)", symbols, SYMBOLS, &expr);
        if (status == ATTUNE_OK)
            status = attune__expr_combine(&allocator, ATTUNE__OP_NOT, expr, NULL, &joined);
        if (status == ATTUNE_OK)
            status = attune__expr_print(expr, ATTUNE_EXPR_TEXT, text, sizeof text, NULL);
        if (status == ATTUNE_OK) {
            attune_host_capture capture = {"doc", {data, ATTUNE_I32, 1, {100}, {0}}};
            cr_assert(attune__bindings_resolve(expr, &capture, 1, NULL, 0, &array, &value) == ATTUNE_OK);
            status = attune__ranges_create(&allocator, expr, &(attune__bindings){&array, &value}, &ranges);
        }
        done = status == ATTUNE_OK;
        cr_assert(done || status == ATTUNE_OUT_OF_HOST_MEMORY);
        attune__ranges_destroy(ranges);
        attune__expr_release(joined);
        attune__expr_release(expr);
        cr_assert(state.live == 0, "allocation %d: %d left", number, state.live);
    }
    cr_log_info("%d allocations", number - 1);
}
