/* SPDX-License-Identifier: MIT */
/* Arrays that grow, and sizes past the address space. */
#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "support/heap.h"

static size_t last_size, last_alignment;

static void *note_size(void *user, size_t size, size_t alignment)
{
    const attune_allocator *allocator = user;
    last_size = size;
    last_alignment = alignment;
    return size > SIZE_MAX / 4 ? NULL : allocator->alloc(allocator->user, size, alignment);
}

static void release(void *user, void *memory)
{
    const attune_allocator *allocator = user;
    allocator->release(allocator->user, memory);
}

Test(alloc, arrays_grow, .timeout = 10)
{
    heap h = {0};
    const attune_allocator inner = heap_allocator(&h), allocator = {note_size, release, (void *)(uintptr_t)&inner};
    uint32_t *array = NULL;
    size_t capacity = 0, used = 0;
    for (; used < 1000; used++) {
        cr_assert(attune__grow(&allocator, (void **)&array, &capacity, used, used + 1, sizeof *array));
        cr_assert(capacity > used);
        array[used] = (uint32_t)used * 7;
    }
    for (size_t i = 0; i < used; i++)
        cr_assert_eq(array[i], i * 7);
    cr_assert_eq(capacity, 1024);
    cr_assert_eq(last_size, 1024 * sizeof *array);
    cr_assert_eq(last_alignment, 64);
    cr_assert_eq(atomic_load(&h.allocations), 7, "16, 32, ... 1024");
    /* More than the double at once; what there is already, nothing is done for. */
    cr_assert(attune__grow(&allocator, (void **)&array, &capacity, used, 5000, sizeof *array));
    cr_assert_eq(capacity, 8192);
    cr_assert(attune__grow(&allocator, (void **)&array, &capacity, used, 8192, sizeof *array));
    cr_assert_eq(atomic_load(&h.allocations), 8);
    cr_assert_eq(array[999], 999 * 7);
    /* Of more than half the address space a double does not exist. */
    static const size_t sizes[] = {SIZE_MAX / 2, SIZE_MAX / 2 + 2, SIZE_MAX - 100, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        cr_assert_not(attune__grow(&allocator, (void **)&array, &capacity, used, sizes[i], 1));
        cr_assert_not(attune__grow(&allocator, (void **)&array, &capacity, used, sizes[i], sizeof *array));
        cr_assert(capacity == 8192 && array[999] == 999 * 7);
    }
    attune__free(&allocator, array);
    cr_assert_eq(atomic_load(&h.live), 0);
}

Test(alloc, sizes)
{
    heap h = {0};
    const attune_allocator inner = heap_allocator(&h), allocator = {note_size, release, (void *)(uintptr_t)&inner};
    static const size_t refused[][2] = {
        {SIZE_MAX, 1}, {SIZE_MAX / 2, 3}, {2, SIZE_MAX / 2 + 1}, {SIZE_MAX - 63, 1}, {SIZE_MAX / 8 + 1, 8}};
    last_size = 0;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        cr_assert_null(attune__alloc_raw(&allocator, refused[i][0], refused[i][1]));
        cr_assert_not_null(strstr(attune_last_error(), "exceed the address space"), "%s", attune_last_error());
    }
    cr_assert_eq(last_size, 0, "the allocator was asked");
    cr_assert_null(attune__alloc_raw(&allocator, SIZE_MAX - 64, 1));
    cr_assert_eq(last_size, SIZE_MAX - 64);
    void *none = attune__alloc_raw(&allocator, 0, 8);
    cr_assert(none && last_size == 1, "no element is memory too");
    attune__free(&allocator, none);
    uint8_t *zeros = attune__alloc(&allocator, 7, 9);
    for (int i = 0; i < 63; i++)
        cr_assert_eq(zeros[i], 0);
    cr_assert_eq(last_size, 63);
    attune__free(&allocator, zeros);
    attune__free(&allocator, NULL);
    char *copy = attune__strdup(&allocator, "words");
    cr_assert_str_eq(copy, "words");
    cr_assert_eq(last_size, 6);
    attune__free(&allocator, copy);
    cr_assert_eq(atomic_load(&h.live), 0);
    /* The library's own, whose sizes are multiples of the alignment. */
    for (size_t size = 1; size < 300; size += 37) {
        void *memory = attune__alloc_raw(&attune__default_allocator, size, 1);
        cr_assert(memory && (uintptr_t)memory % 64 == 0);
        memset(memory, 1, size);
        attune__free(&attune__default_allocator, memory);
    }
}
