/* covering.h: the rows have all triples, they are few, and the count notices one that is missing.
 */
#include "tests/covering.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

/* Axes, and the fewest rows that can do: the product of the three largest. */
static void check(const int *n_values, int n_axes, int fewest, int most) {
    struct covering c = covering_of(n_values, n_axes);
    print_message("%d axes, %ld triples: %d rows\n", n_axes, covering_triples(&c), c.n_rows);
    assert_int_equal(covering_missing(&c), 0);
    assert_in_range(c.n_rows, fewest, most);
    for (int i = 0; i < c.n_rows; i++)
        for (int a = 0; a < n_axes; a++)
            assert_in_range(c.rows[i][a], 0, n_values[a] - 1);
    covering_free(&c);
}

static void test_all_triples(void **state) {
    (void)state;
    static const int three[] = {2, 3, 4}, with_ones[] = {1, 3, 1, 2}, ones[] = {1, 1, 1, 1},
                     binary[] = {2, 2, 2, 2, 2, 2, 2, 2, 2, 2},
                     many[] = {5, 6, 5, 9, 4, 7, 6, 5, 5, 3, 2, 3, 6};
    check(three, COUNT(three), 24, 24);
    check(with_ones, COUNT(with_ones), 6, 6);
    check(ones, COUNT(ones), 1, 1);
    check(binary, COUNT(binary), 8, 24);
    check(many, COUNT(many), 9 * 7 * 6, 2 * 9 * 7 * 6);
}

static void test_the_count(void **state) {
    (void)state;
    static const int n_values[] = {2, 3, 4, 5};
    uint8_t rows[120][COVERING_MOST_AXES];
    struct covering all = {4, {2, 3, 4, 5}, 0, rows};
    assert_int_equal(covering_triples(&all), 24 + 30 + 40 + 60);
    assert_int_equal(covering_missing(&all), 24 + 30 + 40 + 60);
    for (int i = 0; i < 120; i++) {
        const int values[] = {i % 2, i / 2 % 3, i / 6 % 4, i / 24};
        for (int a = 0; a < 4; a++)
            rows[i][a] = (uint8_t)values[a];
    }
    all.n_rows = 120; /* everything */
    assert_int_equal(covering_missing(&all), 0);
    all.n_rows = 1; /* one row has one triple of every three axes */
    assert_int_equal(covering_missing(&all), 24 + 30 + 40 + 60 - 4);
    for (int i = 0; i < 120; i++) /* without the values 1, 2 and 3 of the first three axes */
        if (rows[i][0] == 1 && rows[i][1] == 2 && rows[i][2] == 3)
            rows[i][2] = 0;
    all.n_rows = 120;
    assert_int_equal(covering_missing(&all), 1);

    struct covering c = covering_of(n_values, 4);
    c.n_rows--; /* the last row was taken because of a triple that no other has */
    assert_true(covering_missing(&c) > 0);
    covering_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_triples),
        cmocka_unit_test(test_the_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
