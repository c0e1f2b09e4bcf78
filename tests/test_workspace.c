/*
 * workspace: where the host reads logits (forward_logits), on a device that only counts. Getting
 * such memory takes long, so it stays; and where the device's memory is the host's, nothing is
 * copied.
 */
#include "model/workspace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 10 };

static struct {
    int gotten, downloads;
    size_t bytes; /* not given back yet */
    bool is_full;
} count;

static void *get(struct device *dev, size_t bytes, const char *what, struct error *err) {
    (void)dev;
    if (count.is_full) {
        error_set(err, "no memory for %s", what);
        return NULL;
    }
    count.gotten++;
    count.bytes += bytes;
    return malloc(bytes + 1);
}

static void *get_device_memory(struct device *dev, size_t bytes, const char *what,
                               struct error *err) {
    return get(dev, bytes, what, err);
}

static void give_back(struct device *dev, void *data, size_t bytes) {
    (void)dev;
    if (data)
        count.bytes -= bytes;
    free(data);
}

static void download(struct device *dev, void *to_host, const void *from, size_t bytes) {
    (void)dev;
    memcpy(to_host, from, bytes);
    count.downloads++;
}

static const struct ops with_own_memory = {.alloc = get_device_memory,
                                           .free = give_back,
                                           .alloc_host_visible = get,
                                           .free_host_visible = give_back,
                                           .download = download};
static const struct ops with_host_memory = {.alloc = get,
                                            .free = give_back,
                                            .alloc_host_visible = get,
                                            .free_host_visible = give_back,
                                            .download = download};

/* Logits of n rows as the host sees them. */
static void assert_seen(struct workspace *ws, int n) {
    struct error err;
    const float *seen = forward_logits(ws, n, &err);
    assert_non_null(seen);
    assert_memory_equal(seen, ws->logits, sizeof *seen * VOCAB * (size_t)n);
}

static void logits_are_copied_into_memory_that_stays(void **state) {
    static const struct {
        int n, gotten; /* in all */
    } passes[] = {{1, 1}, {1, 1}, {3, 2}, {4, 2}, {2, 2}, {5, 3}, {8, 3}, {1, 3}};
    struct device dev = {.ops = &with_own_memory};
    struct model model = {.dev = &dev, .config.vocab_size = VOCAB};
    struct error err = {""};
    struct workspace *ws = workspace_new(&model, &err);
    float logits[8 * VOCAB];
    (void)state;
    assert_non_null(ws);
    memset(&count, 0, sizeof count);
    ws->logits = logits;
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        for (int j = 0; j < passes[i].n * VOCAB; j++)
            logits[j] = (float)(j + 1000 * (int)i);
        assert_seen(ws, passes[i].n);
        assert_int_equal(count.gotten, passes[i].gotten);
        assert_int_equal(count.downloads, i + 1);
    }
    count.is_full = true;
    assert_null(forward_logits(ws, 9, &err));
    assert_string_equal(err.text, "no memory for the logits");
    count.is_full = false;
    assert_seen(ws, 2); /* as from the beginning */
    ws->logits = NULL;
    workspace_free(ws);
    assert_int_equal(count.bytes, 0);
}

static void the_hosts_own_logits_are_not_copied(void **state) {
    struct device dev = {.ops = &with_host_memory};
    struct model model = {.dev = &dev, .config.vocab_size = VOCAB};
    struct error err;
    struct workspace *ws = workspace_new(&model, &err);
    float logits[VOCAB];
    (void)state;
    assert_non_null(ws);
    memset(&count, 0, sizeof count);
    ws->logits = logits;
    assert_ptr_equal(forward_logits(ws, 1, &err), logits);
    assert_int_equal(count.gotten + count.downloads, 0);
    ws->logits = NULL;
    workspace_free(ws);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_copied_into_memory_that_stays),
        cmocka_unit_test(the_hosts_own_logits_are_not_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
