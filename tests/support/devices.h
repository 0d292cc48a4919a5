/* SPDX-License-Identifier: MIT */
/* Devices for tests: a missing one skips the test with its reason, or fails it if ATTUNE_REQUIRE names its backend. */
#ifndef TESTS_SUPPORT_DEVICES_H
#define TESTS_SUPPORT_DEVICES_H

#include <attune/attune.h>

/* Opens a backend's first device. Does not return if there is none: the test is skipped or failed. */
attune_device *device_or_skip(attune_instance *instance, const char *backend);

/* Does not return where NVRTC cannot be opened: the test is skipped, or failed if ATTUNE_REQUIRE names nvrtc. */
void nvrtc_or_skip(void);
/* Has the next instances find the model of the CUDA kernels (docs/model.md) in the place of NVIDIA's driver and
 * compiler: those that ATTUNE_MODEL_CUDA and ATTUNE_MODEL_NVRTC name. They must have no cache of kernels. */
void model_or_skip(void);

/* Random cases to run: `full` times ATTUNE_TEST_SCALE (default 1), at least 1. */
uint64_t scaled(uint64_t full);

/* The seed of random cases: ATTUNE_TEST_SEED, or a fixed one. */
uint64_t test_seed(void);
/* Whether this process has the case: ATTUNE_TEST_PART=2/8 is the third of eight that share them. */
bool test_part(uint64_t number);

/* Whether ATTUNE_TEST_CASE is the name of a table's case that is no test of its own, or is not set. */
bool test_case(const char *name);
/* Fails the test where ATTUNE_TEST_CASE is the name of none: to be called with how many cases ran. */
void test_case_found(size_t ran);
/* Whether ATTUNE_TEST_DTYPE is the name of a dtype that a row of the case table runs in, or is not set. */
bool test_dtype(attune_dtype dtype);

/* Of `full` random cases, the first ones that an earlier run of the same programs has had: `full` times
 * ATTUNE_TEST_DONE, at least 1; 0 if that is not set. Where it is, files of tests that read no scale are left out: they
 * would run as they ran. */
uint64_t test_done(uint64_t full);

/* Whether a table runs on a device in the share that continuous integration has time for, times ATTUNE_TEST_SCALE:
 * ATTUNE_TEST_SAMPLE is set. */
bool test_sampled(void);

#endif
