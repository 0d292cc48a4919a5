/* SPDX-License-Identifier: MIT */
/*
 * The end of a kernel's library: special registers, entry points, and the functions that -fsanitize=thread calls for
 * each load and store of the kernel's own code, which tell the machine. Nothing of ThreadSanitizer's is linked.
 */
#include <type_traits>
#include <utility>

#include "builtins.h"

extern "C" {
model_machine model_functions;
model_index threadIdx, blockIdx, gridDim, blockDim;

/* A thread has the library's thread-local storage from the first use of any: of this, where a kernel has static shared
 * memory alone. */
static thread_local volatile unsigned char model_storage;

extern __attribute__((visibility("default"))) const model_kernel_library model_library;
const model_kernel_library model_library = {&model_functions, &threadIdx, &blockIdx, &gridDim, &blockDim};

#define MODEL_ACCESS   __attribute__((no_sanitize("thread"), noinline, used))
#define MODEL_SIZES(X) X(1) X(2) X(4) X(8) X(16)
#define MODEL_HOOKS(n)                                                                                                 \
    MODEL_ACCESS void __tsan_read##n(void *p)                                                                          \
    {                                                                                                                  \
        model->access(p, n, 0, __builtin_return_address(0));                                                           \
    }                                                                                                                  \
    MODEL_ACCESS void __tsan_write##n(void *p)                                                                         \
    {                                                                                                                  \
        model->access(p, n, 1, __builtin_return_address(0));                                                           \
    }                                                                                                                  \
    MODEL_ACCESS void __tsan_unaligned_read##n(void *p)                                                                \
    {                                                                                                                  \
        model->access(p, n, 0, __builtin_return_address(0));                                                           \
    }                                                                                                                  \
    MODEL_ACCESS void __tsan_unaligned_write##n(void *p)                                                               \
    {                                                                                                                  \
        model->access(p, n, 1, __builtin_return_address(0));                                                           \
    }                                                                                                                  \
    MODEL_ACCESS void __tsan_read_write##n(void *p)                                                                    \
    {                                                                                                                  \
        model->access(p, n, 0, __builtin_return_address(0));                                                           \
        model->access(p, n, 1, __builtin_return_address(0));                                                           \
    }                                                                                                                  \
    MODEL_ACCESS void __tsan_unaligned_read_write##n(void *p)                                                          \
    {                                                                                                                  \
        model->access(p, n, 0, __builtin_return_address(0));                                                           \
        model->access(p, n, 1, __builtin_return_address(0));                                                           \
    }
MODEL_SIZES(MODEL_HOOKS)
MODEL_ACCESS void __tsan_read_range(void *p, size_t size)
{
    model->access(p, size, 0, __builtin_return_address(0));
}
MODEL_ACCESS void __tsan_write_range(void *p, size_t size)
{
    model->access(p, size, 1, __builtin_return_address(0));
}
MODEL_ACCESS void *__tsan_memcpy(void *to, const void *from, size_t size)
{
    model->access(from, size, 0, __builtin_return_address(0));
    model->access(to, size, 1, __builtin_return_address(0));
    return __builtin_memcpy(to, from, size);
}
MODEL_ACCESS void *__tsan_memmove(void *to, const void *from, size_t size)
{
    model->access(from, size, 0, __builtin_return_address(0));
    model->access(to, size, 1, __builtin_return_address(0));
    return __builtin_memmove(to, from, size);
}
MODEL_ACCESS void *__tsan_memset(void *to, int value, size_t size)
{
    model->access(to, size, 1, __builtin_return_address(0));
    return __builtin_memset(to, value, size);
}
MODEL_ACCESS void __tsan_init(void)
{
}
MODEL_ACCESS void __tsan_func_entry(void *)
{
}
MODEL_ACCESS void __tsan_func_exit(void)
{
}
}

/* Calls a kernel with parameters as cuLaunchKernel has them. */
template <typename... T, size_t... I>
static __attribute__((no_sanitize("thread"))) void model_spread(void (*kernel)(T...), void **parameters,
                                                                std::index_sequence<I...>)
{
    kernel(*(typename std::remove_const<T>::type *)parameters[I]...);
}

template <typename... T>
static __attribute__((no_sanitize("thread"))) void model_call(void (*kernel)(T...), void **parameters)
{
    model_spread(kernel, parameters, std::index_sequence_for<T...>());
}

/* The bytes of each parameter, of at most `most`: how many there are, or -1. */
template <typename... T>
static __attribute__((no_sanitize("thread"))) int model_sizes(void (*)(T...), size_t *sizes, int most)
{
    const size_t all[] = {sizeof(T)...};
    const int count = (int)sizeof...(T);
    for (int i = 0; i < count && i < most; i++)
        sizes[i] = all[i];
    return count <= most ? count : -1;
}
