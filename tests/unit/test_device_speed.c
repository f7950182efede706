// SPDX-License-Identifier: Apache-2.0
/* By which way a flush goes, from what flushes took. */
#include "flush/device_speed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)

/* Nanoseconds for a MiB at so many MB/s. */
static uint64_t at(uint64_t rate) { return MIB * 1000 / rate; }

static int of_100(uint64_t dev, enum device_speed_way way)
{
	int n = 0;

	for (int i = 0; i < 100; i++)
		n += device_speed_choose(dev) == way;
	return n;
}

static void test_unknown_devices_and_fast_ones_are_direct(void **state)
{
	(void)state;
	assert_int_equal(of_100(1, DEVICE_SPEED_DIRECT), 100);
	for (int i = 0; i < 20; i++)
		device_speed_note(1, DEVICE_SPEED_DIRECT, MIB, at(1000));
	device_speed_note(1, DEVICE_SPEED_BUFFERED, MIB, at(5000));
	assert_int_equal(of_100(1, DEVICE_SPEED_DIRECT), 100);
}

static void test_a_slow_device_gets_the_page_cache(void **state)
{
	(void)state;
	device_speed_note(2, DEVICE_SPEED_DIRECT, MIB, at(50));
	assert_int_equal(of_100(2, DEVICE_SPEED_BUFFERED), 100); /* not known yet: tried */
	device_speed_note(2, DEVICE_SPEED_BUFFERED, MIB, at(1500));
	assert_in_range(of_100(2, DEVICE_SPEED_DIRECT), 1, 2); /* measured again, now and then */
	assert_int_equal(of_100(3, DEVICE_SPEED_DIRECT), 100); /* another device */
}

static void test_until_the_kernel_makes_writers_wait(void **state)
{
	(void)state;
	device_speed_note(4, DEVICE_SPEED_DIRECT, MIB, at(50));
	for (int i = 0; i < 20; i++)
		device_speed_note(4, DEVICE_SPEED_BUFFERED, MIB, at(1500));
	assert_int_equal(device_speed_choose(4), DEVICE_SPEED_BUFFERED);
	for (int i = 0; i < 20; i++)
		device_speed_note(4, DEVICE_SPEED_BUFFERED, MIB, at(50));
	assert_in_range(of_100(4, DEVICE_SPEED_BUFFERED), 1, 2);
	for (int i = 0; i < 20; i++)
		device_speed_note(4, DEVICE_SPEED_BUFFERED, MIB, at(1500));
	assert_in_range(of_100(4, DEVICE_SPEED_BUFFERED), 98, 99);
}

static void test_a_device_that_becomes_fast(void **state)
{
	(void)state;
	device_speed_note(5, DEVICE_SPEED_DIRECT, MIB, at(50));
	device_speed_note(5, DEVICE_SPEED_BUFFERED, MIB, at(1500));
	for (int i = 0; i < 40; i++)
		device_speed_note(5, DEVICE_SPEED_DIRECT, MIB, at(1000));
	assert_int_equal(of_100(5, DEVICE_SPEED_DIRECT), 100);
}

static void test_odd_figures(void **state)
{
	(void)state;
	device_speed_note(6, DEVICE_SPEED_DIRECT, 0, 5);
	device_speed_note(6, DEVICE_SPEED_DIRECT, 1023, UINT64_MAX);
	assert_int_equal(of_100(6, DEVICE_SPEED_DIRECT), 100);
	device_speed_note(6, DEVICE_SPEED_DIRECT, 1024, UINT64_MAX);
	assert_int_equal(of_100(6, DEVICE_SPEED_BUFFERED), 100);
	device_speed_note(6, DEVICE_SPEED_BUFFERED, UINT64_MAX, 0);
	assert_in_range(of_100(6, DEVICE_SPEED_BUFFERED), 98, 99);
	/* more devices than are kept: as if nothing was known */
	for (uint64_t dev = 100; dev < 200; dev++)
		device_speed_note(dev, DEVICE_SPEED_DIRECT, MIB, at(50));
	assert_int_equal(of_100(199, DEVICE_SPEED_DIRECT), 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_unknown_devices_and_fast_ones_are_direct),
		cmocka_unit_test(test_a_slow_device_gets_the_page_cache),
		cmocka_unit_test(test_until_the_kernel_makes_writers_wait),
		cmocka_unit_test(test_a_device_that_becomes_fast),
		cmocka_unit_test(test_odd_figures),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
