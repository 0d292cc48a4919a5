/* SPDX-License-Identifier: MIT */
/* NPY files, format of numpy/lib/format.py. The file is hostile until parsed: every figure in it is checked against its
 * length before it is used, and nothing is allocated from a figure alone. */
#include "tests/oracle/array.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A header beyond this is no array's. */
#define HEADER_LIMIT 65536

typedef struct cursor {
    const char *at, *end;
} cursor;

static void skip_space(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
        c->at++;
}

static bool accept(cursor *c, char wanted)
{
    skip_space(c);
    if (c->at == c->end || *c->at != wanted)
        return false;
    c->at++;
    return true;
}

/* A Python string without escapes and NUL. */
static bool read_string(cursor *c, char *out, size_t size)
{
    skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"'))
        return false;
    char quote = *c->at++;
    const char *begin = c->at;
    while (c->at < c->end && *c->at != quote)
        c->at++;
    size_t length = (size_t)(c->at - begin);
    if (c->at == c->end || length >= size || memchr(begin, '\\', length) || memchr(begin, '\0', length))
        return false;
    memcpy(out, begin, length);
    out[length] = '\0';
    c->at++;
    return true;
}

static bool read_size(cursor *c, int64_t *value)
{
    skip_space(c);
    const char *begin = c->at;
    *value = 0;
    while (c->at < c->end && isdigit((unsigned char)*c->at)) {
        if (__builtin_mul_overflow(*value, 10, value) || __builtin_add_overflow(*value, *c->at - '0', value))
            return false;
        c->at++;
    }
    if (c->at < c->end && *c->at == 'L')
        c->at++;
    return c->at > begin;
}

static bool read_word(cursor *c, const char *word)
{
    skip_space(c);
    size_t length = strlen(word);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length) != 0)
        return false;
    c->at += length;
    return true;
}

static const struct {
    const char *descr;
    attune_dtype dtype;
} types[] = {
    {"<f4", ATTUNE_F32},  {"<f8", ATTUNE_F64},  {"<f2", ATTUNE_F16},       {"<i4", ATTUNE_I32},
    {"<i8", ATTUNE_I64},  {"|u1", ATTUNE_U8},   {"<u1", ATTUNE_U8},        {"|b1", ATTUNE_BOOL},
    {"|V2", ATTUNE_BF16}, {"<V2", ATTUNE_BF16}, {"bfloat16", ATTUNE_BF16},
};

typedef struct header {
    char descr[32];
    bool fortran, has_descr, has_order, has_shape;
    uint32_t rank;
    int64_t size[ATTUNE_MAX_RANK];
} header;

static bool read_shape(cursor *c, header *h, const char *name, failure *why)
{
    if (!accept(c, '('))
        return failure_set(why, "%s: the header's shape is no tuple", name);
    while (!accept(c, ')')) {
        if (h->rank == ATTUNE_MAX_RANK)
            return failure_set(why, "%s: the array has more than %d dimensions, the limit", name, ATTUNE_MAX_RANK);
        if (!read_size(c, &h->size[h->rank]))
            return failure_set(why, "%s: dimension %u of the header's shape is no size", name, h->rank);
        h->rank++;
        if (!accept(c, ',') && (c->at == c->end || *c->at != ')'))
            return failure_set(why, "%s: the header's shape does not end", name);
    }
    h->has_shape = true;
    return true;
}

static bool read_header(cursor *c, header *h, const char *name, failure *why)
{
    memset(h, 0, sizeof *h);
    if (!accept(c, '{'))
        return failure_set(why, "%s: the header is no dictionary", name);
    while (!accept(c, '}')) {
        char key[32];
        if (!read_string(c, key, sizeof key) || !accept(c, ':'))
            return failure_set(why, "%s: the header has something that is no key", name);
        if (!strcmp(key, "descr") && !h->has_descr) {
            if (!read_string(c, h->descr, sizeof h->descr))
                return failure_set(why, "%s: the element type is structured or not a string: save a plain array", name);
            h->has_descr = true;
        } else if (!strcmp(key, "fortran_order") && !h->has_order) {
            h->fortran = read_word(c, "True");
            if (!h->fortran && !read_word(c, "False"))
                return failure_set(why, "%s: fortran_order is neither True nor False", name);
            h->has_order = true;
        } else if (!strcmp(key, "shape") && !h->has_shape) {
            if (!read_shape(c, h, name, why))
                return false;
        } else {
            return failure_set(why, "%s: the header's key '%s' is unknown or repeated", name, key);
        }
        if (!accept(c, ',') && (skip_space(c), c->at == c->end || *c->at != '}'))
            return failure_set(why, "%s: the header does not end", name);
    }
    if (!h->has_descr || !h->has_order || !h->has_shape)
        return failure_set(why, "%s: the header lacks %s", name,
                           !h->has_descr   ? "descr"
                           : !h->has_order ? "fortran_order"
                                           : "shape");
    return true;
}

/* Reads the header. The data is behind it: *data, of *had bytes. */
static bool find_data(const void *bytes, size_t length, const char *name, header *h, const unsigned char **data,
                      size_t *had, failure *why)
{
    const unsigned char *b = bytes;
    if (length < 10 || memcmp(b, "\x93NUMPY", 6) != 0)
        return failure_set(why, "%s: no NPY file: it does not begin with \\x93NUMPY", name);
    const unsigned major = b[6];
    if (major < 1 || major > 3 || b[7])
        return failure_set(why, "%s: NPY version %u.%u, expected 1.0, 2.0 or 3.0", name, major, b[7]);
    size_t prefix = major == 1 ? 10 : 12;
    if (length < prefix)
        return failure_set(why, "%s: the file ends within its header", name);
    size_t header_length = b[8] | (size_t)b[9] << 8;
    if (major > 1)
        header_length |= (size_t)b[10] << 16 | (size_t)b[11] << 24;
    if (header_length > HEADER_LIMIT)
        return failure_set(why, "%s: the header has %zu bytes, the limit is %d", name, header_length, HEADER_LIMIT);
    if (header_length > length - prefix)
        return failure_set(why, "%s: the header has %zu bytes, the file only %zu more", name, header_length,
                           length - prefix);

    const char *text = (const char *)b + prefix;
    cursor c = {text, text + header_length};
    if (!read_header(&c, h, name, why))
        return false;
    skip_space(&c);
    if (c.at != c.end)
        return failure_set(why, "%s: the header goes on after its dictionary", name);
    *data = b + prefix + header_length;
    *had = length - prefix - header_length;
    return true;
}

/* Whether the data is that of the shape, with elements of so many bytes. */
static bool is_whole(const header *h, size_t element, size_t had, const char *name, failure *why)
{
    if (h->fortran && h->rank > 1)
        return failure_set(why, "%s: the array is in Fortran order: save numpy.ascontiguousarray of it", name);
    size_t count = 1, wanted;
    for (uint32_t i = 0; i < h->rank; i++) {
        if (h->size[i] == 0)
            return failure_set(why, "%s: dimension %u has size 0: the array is empty", name, i);
        if (__builtin_mul_overflow(count, (size_t)h->size[i], &count))
            return failure_set(why, "%s: the shape has more than 2^64 elements", name);
    }
    if (__builtin_mul_overflow(count, element, &wanted) || wanted != had)
        return failure_set(why, "%s: the shape asks for %zu elements of %zu bytes, the file has %zu bytes of data",
                           name, count, element, had);
    return true;
}

bool npy_parse(const void *bytes, size_t length, const char *name, array *out, failure *why)
{
    header h;
    const unsigned char *data;
    size_t had;
    if (!find_data(bytes, length, name, &h, &data, &had, why))
        return false;
    attune_dtype dtype = (attune_dtype)0;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (!strcmp(types[i].descr, h.descr))
            dtype = types[i].dtype;
    if (!attune_dtype_size(dtype))
        return failure_set(why, "%s: element type '%s', expected <f4 <f8 <f2 <i4 <i8 |u1 |b1 or bfloat16 (|V2)", name,
                           h.descr);
    if (!is_whole(&h, attune_dtype_size(dtype), had, name, why) || !array_create(out, dtype, h.rank, h.size, why))
        return false;
    memcpy(out->data, data, had);
    return true;
}

/* The little-endian integer of so many bytes at `data`, whose high bits are copies of its sign. */
static uint64_t integer_at(const unsigned char *data, size_t width, bool is_signed)
{
    uint64_t bits = 0;
    memcpy(&bits, data, width);
    const uint64_t sign = UINT64_C(1) << (8 * width - 1);
    return is_signed ? (bits ^ sign) - sign : bits;
}

bool npy_parse_integers(const void *bytes, size_t length, const char *name, int64_t least, int64_t most, array *out,
                        failure *why)
{
    header h;
    const unsigned char *data;
    size_t had;
    if (!find_data(bytes, length, name, &h, &data, &had, why))
        return false;
    const char order = h.descr[0], kind = order ? h.descr[1] : '\0', width = kind ? h.descr[2] : '\0';
    if (strlen(h.descr) != 3 || (order != '<' && (order != '|' || width != '1')) || (kind != 'i' && kind != 'u') ||
        !strchr("1248", width))
        return failure_set(why, "%s: element type '%s', expected integers: |i1 <i2 <i4 <i8 |u1 <u2 <u4 or <u8", name,
                           h.descr);
    const size_t element = (size_t)(width - '0');
    const bool is_signed = kind == 'i';
    if (!is_whole(&h, element, had, name, why))
        return false;
    for (size_t i = 0; i < had; i += element) {
        const uint64_t bits = integer_at(data + i, element, is_signed);
        if (!is_signed && bits > INT64_MAX)
            return failure_set(why, "%s: has %" PRIu64 ", expected %" PRId64 " to %" PRId64, name, bits, least, most);
        if ((int64_t)bits < least || (int64_t)bits > most)
            return failure_set(why, "%s: has %" PRId64 ", expected %" PRId64 " to %" PRId64, name, (int64_t)bits, least,
                               most);
    }
    if (!array_create(out, ATTUNE_I64, h.rank, h.size, why))
        return false;
    for (size_t i = 0; i < had / element; i++)
        ((int64_t *)out->data)[i] = (int64_t)integer_at(data + i * element, element, is_signed);
    return true;
}

/* The bytes of a file, to be freed. */
static char *read_file(const char *path, size_t *length, failure *why)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        failure_set(why, "%s: %s", path, strerror(errno));
        return NULL;
    }
    char *bytes = NULL;
    struct stat about;
    /* A directory or a pipe has no length to hold the header against. */
    if (fstat(fileno(file), &about) != 0 || !S_ISREG(about.st_mode)) {
        failure_set(why, "%s: not a regular file", path);
        goto done;
    }
    *length = (size_t)about.st_size;
    bytes = malloc(*length ? *length : 1);
    if (!bytes) {
        failure_set(why, "%s: out of memory: %zu bytes", path, *length);
        goto done;
    }
    errno = 0;
    if (fread(bytes, 1, *length, file) != *length) {
        failure_set(why, "%s: could not be read whole: %s", path, errno ? strerror(errno) : "it got shorter");
        free(bytes);
        bytes = NULL;
    }
done:
    (void)fclose(file);
    return bytes;
}

bool npy_read(const char *path, array *out, failure *why)
{
    size_t length;
    char *bytes = read_file(path, &length, why);
    const bool ok = bytes && npy_parse(bytes, length, path, out, why);
    free(bytes);
    return ok;
}

bool npy_read_integers(const char *path, int64_t least, int64_t most, array *out, failure *why)
{
    size_t length;
    char *bytes = read_file(path, &length, why);
    const bool ok = bytes && npy_parse_integers(bytes, length, path, least, most, out, why);
    free(bytes);
    return ok;
}

static const char *descr_of(attune_dtype dtype)
{
    if (dtype == ATTUNE_BF16)
        return "<f4";
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].dtype == dtype)
            return types[i].descr;
    return "";
}

bool npy_write(FILE *file, const array *a)
{
    char text[256], shape[128] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < a->rank; i++)
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%" PRId64 ",%s", a->size[i],
                                 i + 1 < a->rank ? " " : "");
    int length = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                          descr_of(a->dtype), shape);
    /* The data begins at a multiple of 64; the header ends with a newline. */
    size_t total = ((size_t)length + 11 + 63) / 64 * 64;
    const unsigned char prefix[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)((total - 10) & 255), (unsigned char)((total - 10) >> 8)};
    bool ok = fwrite(prefix, 1, sizeof prefix, file) == sizeof prefix &&
              fprintf(file, "%-*s\n", (int)(total - 11), text) == (int)(total - 10);
    size_t count = (size_t)array_count(a);
    if (a->dtype != ATTUNE_BF16)
        return ok && fwrite(a->data, attune_dtype_size(a->dtype), count, file) == count;
    for (size_t i = 0; ok && i < count; i++) {
        float value = (float)array_get(a, (int64_t)i);
        ok = fwrite(&value, sizeof value, 1, file) == 1;
    }
    return ok;
}
