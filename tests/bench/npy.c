/* SPDX-License-Identifier: MIT */
/* Arrays and NPY files: exact conversions, round trips, and files with false headers. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/half.h"
#include "tests/oracle/array.h"

/* Makes the bytes of an NPY file. */
static size_t make_file(unsigned char *out, const char *header, unsigned version, size_t data)
{
    size_t length = strlen(header), prefix = version == 1 ? 10 : 12;
    memcpy(out, "\x93NUMPY", 6);
    out[6] = (unsigned char)version;
    out[7] = 0;
    for (size_t i = 8; i < prefix; i++)
        out[i] = (unsigned char)(length >> 8 * (i - 8));
    memcpy(out + prefix, header, length);
    for (size_t i = 0; i < data; i++)
        out[prefix + length + i] = (unsigned char)(i + 1);
    return prefix + length + data;
}

#define HEADER "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n"

Test(npy, good_files)
{
    static unsigned char file[4096];
    static const struct {
        const char *header;
        unsigned version;
        size_t bytes;
        attune_dtype dtype;
        uint32_t rank;
    } good[] = {
        {HEADER, 1, 24, ATTUNE_F32, 2},
        {HEADER, 2, 24, ATTUNE_F32, 2},
        {HEADER, 3, 24, ATTUNE_F32, 2},
        {"{'shape': (5,), 'fortran_order': True, 'descr': '<i8'}", 1, 40, ATTUNE_I64, 1},
        {"{\"descr\": \"|b1\", \"fortran_order\": False, \"shape\": (1, 2, 3, 4)}", 1, 24, ATTUNE_BOOL, 4},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': ()}", 1, 8, ATTUNE_F64, 0},
        {"{'descr': '|V2', 'fortran_order': False, 'shape': (4,)}", 1, 8, ATTUNE_BF16, 1},
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (4L,)}", 1, 8, ATTUNE_F16, 1},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        array a;
        failure why;
        size_t size = make_file(file, good[i].header, good[i].version, good[i].bytes);
        cr_assert(npy_parse(file, size, "file", &a, &why), "%s: %s", good[i].header, why.message);
        cr_assert_eq(a.dtype, good[i].dtype);
        cr_assert_eq(a.rank, good[i].rank);
        cr_assert_eq(memcmp(a.data, file + size - good[i].bytes, good[i].bytes), 0);
        array_free(&a);
        /* Cut anywhere, it is refused. */
        for (size_t cut = 0; cut < size; cut++) {
            why.message[0] = '\0';
            cr_assert(!npy_parse(file, cut, "file", &a, &why), "%s cut at %zu is taken", good[i].header, cut);
            cr_assert(why.message[0]);
        }
    }
}

Test(npy, files_that_lie)
{
    static unsigned char file[4096];
    static const struct {
        const char *header;
        const char *words;
    } bad[] = {
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}", "Fortran order"},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3)}", "element type '>f4'"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (2, 3)}", "element type '|O'"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 3)}", "structured"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4)}", "the shape asks for 8 elements"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, -3)}", "is no size"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3)}", "size 0"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4611686018427387904)}", "2^64"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "is no size"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,6)}", "more than 4 dimensions"},
        {"{'descr': '<f4', 'fortran_order': False}", "lacks shape"},
        {"{'fortran_order': False, 'shape': (2, 3)}", "lacks descr"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}", "repeated"},
        {"{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2, 3)}", "neither True nor False"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)", "does not end"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3}", "does not end"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': [2, 3]}", "no tuple"},
        {"{'descr': '<f4\\'', 'fortran_order': False, 'shape': (2, 3)}", "structured or not a string"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } or so\n", "goes on"},
        {"", "no dictionary"},
        {"()", "no dictionary"},
    };
    array a;
    failure why;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        size_t size = make_file(file, bad[i].header, 1, 24);
        cr_assert(!npy_parse(file, size, "file", &a, &why), "%s is taken", bad[i].header);
        cr_expect(strstr(why.message, bad[i].words), "%s: \"%s\" does not say \"%s\"", bad[i].header, why.message,
                  bad[i].words);
    }
    /* A NUL does not end a string: the bytes after it count. */
    const size_t nul = make_file(file, "{'descr': '<f4~', 'fortran_order': False, 'shape': (2, 3)}", 1, 24);
    *(char *)memchr(file, '~', nul) = '\0';
    cr_assert(!npy_parse(file, nul, "file", &a, &why) && strstr(why.message, "not a string"), "%s", why.message);
    size_t size = make_file(file, HEADER, 1, 25);
    cr_assert(!npy_parse(file, size, "file", &a, &why));
    file[6] = 4;
    cr_assert(!npy_parse(file, size, "file", &a, &why) && strstr(why.message, "version 4"));
    make_file(file, HEADER, 1, 24);
    file[7] = 1;
    cr_assert(!npy_parse(file, size, "file", &a, &why) && strstr(why.message, "version 1.1"));
    make_file(file, HEADER, 2, 24);
    file[10] = 255;
    cr_assert(!npy_parse(file, size, "file", &a, &why) && strstr(why.message, "the limit is 65536"));
    cr_assert(!npy_read("/no/such/file.npy", &a, &why) && strstr(why.message, "/no/such/file.npy"));
    cr_assert(!npy_read("/", &a, &why) && strstr(why.message, "not a regular file"));

    /* Every single bit flipped: refused, or an array of its own that can be freed. */
    size = make_file(file, HEADER, 1, 24);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        file[bit / 8] ^= (unsigned char)(1u << bit % 8);
        if (npy_parse(file, size, "file", &a, &why))
            array_free(&a);
        file[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

Test(npy, what_is_written_is_read)
{
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F64, ATTUNE_F16,  ATTUNE_I32,
                                          ATTUNE_I64, ATTUNE_U8,  ATTUNE_BOOL, ATTUNE_BF16};
    char path[] = "/tmp/attune-npy-XXXXXX";
    int file = mkstemp(path);
    cr_assert(file >= 0);
    close(file);
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        for (uint32_t rank = 0; rank <= 4; rank++) {
            const int64_t size[4] = {2, 3, 1, 5};
            array a, b;
            failure why;
            random_state r = {i * 7 + rank};
            cr_assert(array_create(&a, dtypes[i], rank, size, &why));
            array_fill_normal(&a, &r, 40);
            FILE *stream = fopen(path, "wb");
            cr_assert(stream && npy_write(stream, &a));
            cr_assert_eq(fclose(stream), 0);
            cr_assert(npy_read(path, &b, &why), "%s", why.message);
            cr_assert_eq(b.dtype, dtypes[i] == ATTUNE_BF16 ? ATTUNE_F32 : dtypes[i]);
            cr_assert_eq(array_count(&a), array_count(&b));
            for (int64_t k = 0; k < array_count(&a); k++)
                cr_assert_eq(array_get(&a, k), array_get(&b, k));
            array_free(&a);
            array_free(&b);
        }
    remove(path);
    array a;
    failure why;
    const int64_t one = 1;
    cr_assert(array_create(&a, ATTUNE_F32, 1, &one, &why));
    FILE *full = fopen("/dev/full", "wb");
    setvbuf(full, NULL, _IONBF, 0);
    cr_assert(!npy_write(full, &a));
    fclose(full);
    array_free(&a);
}

/* Two implementations that know nothing of each other: the library's and the program's. */
Test(array, half_floats_agree_with_the_library)
{
    uint16_t bits;
    array a = {.dtype = ATTUNE_F16, .rank = 1, .size = {1}, .data = &bits};
    for (uint32_t i = 0; i < 65536; i++) {
        bits = (uint16_t)i;
        a.dtype = ATTUNE_F16;
        double f16 = array_get(&a, 0), library = (double)attune__f32_from_f16((uint16_t)i);
        cr_assert(f16 == library || (isnan(f16) && isnan(library)), "%#x", i);
        a.dtype = ATTUNE_BF16;
        double bf16 = array_get(&a, 0);
        library = (double)attune__f32_from_bf16((uint16_t)i);
        cr_assert(bf16 == library || (isnan(bf16) && isnan(library)), "%#x", i);
    }
    random_state r = {1};
    for (int i = 0; i < 300000; i++) {
        uint32_t word = (uint32_t)random_u64(&r);
        if (i % 3 == 0) /* around f16's range */
            word = (word & 0x8fffffff) | 0x30000000 | (word & 0x1fffffff);
        float value;
        memcpy(&value, &word, sizeof value);
        if (isnan(value))
            continue;
        a.dtype = ATTUNE_F16;
        array_set(&a, 0, (double)value);
        cr_assert_eq(bits, attune__f16_from_f32(value), "%a gives %#x, the library %#x", (double)value, bits,
                     attune__f16_from_f32(value));
        a.dtype = ATTUNE_BF16;
        array_set(&a, 0, (double)value);
        cr_assert_eq(bits, attune__bf16_from_f32(value), "%a", (double)value);
    }
}
