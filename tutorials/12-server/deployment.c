#include "tutorials/12-server/deployment.h"

#include "tutorials/common/pool.h"

#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { PATIENCE = 10 };

/* A token takes some bytes of a body, and whatever a text needs to be escaped. */
struct server_options deployment_limits(const struct demo *demo) {
    return (struct server_options){.host = "127.0.0.1",
                                   .most_body = (64 << 10) + 64 * (size_t)demo->generator.context,
                                   .time_limit = demo->options.timeout,
                                   .most_connections = 1000};
}

/* The longest sequence that the pool has room for: no request may become longer. */
static int pool_positions(const struct kv_pool *p) {
    int64_t n = (int64_t)p->blocks.stats.total * p->block_size;
    return n < INT_MAX ? (int)n : INT_MAX;
}

/* Where there are ranks, the first has the server; the others have a service that hears what it is
 * told. */
static bool has_server(const struct demo *demo) {
    return !demo->parallel || !demo->parallel->rank;
}

int deployment_open(struct deployment *h, struct demo *demo, const struct server_options *options,
                    struct error *err) {
    struct paged_options paged = {(enum preempt_mode)demo->options.preempt,
                                  !demo->options.no_prefix_cache};
    struct service_options service = {.scheduler = {demo->options.max_running,
                                                    demo->options.token_budget, demo->options.chunk,
                                                    true},
                                      .memory = &h->memory,
                                      .tokenizer = demo->tokenizer,
                                      .max_waiting = demo->options.max_waiting,
                                      .wait_limit = demo->options.max_wait,
                                      .stepped = has_server(demo) ? server_stepped : NULL,
                                      .context = &h->server};
    *h = (struct deployment){.server = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                        .step = PTHREAD_COND_INITIALIZER,
                                        .view.lock = PTHREAD_MUTEX_INITIALIZER}};
    if (demo_pool_start(demo, &h->pool, 0, err))
        return -1;
    if (demo->generator.context > pool_positions(&h->pool))
        demo->generator.context = pool_positions(&h->pool);
    paged_memory_start(&h->memory, &h->pool, &paged);
    h->service = service_start(&demo->generator, &service, err);
    if (!h->service)
        return -1;
    return has_server(demo) ? server_start(&h->server, demo, h->service, options, err) : 0;
}

int deployment_close(struct deployment *h, double patience, struct error *err) {
    int result = 0;
    if (h->service) {
        service_drain(h->service, patience);
        result = service_stop(h->service, err);
    }
    server_end(&h->server);
    service_free(h->service);
    paged_memory_end(&h->memory);
    kv_pool_end(&h->pool);
    return result;
}

/* ---- --serve ------------------------------------------------------------------------------------
 */

/* The first line of a file. */
static int read_key(const char *path, char *key, size_t size, struct error *err) {
    FILE *f = fopen(path, "r");
    char *line = f ? fgets(key, (int)size, f) : NULL;
    if (f)
        fclose(f);
    if (!line || !strcspn(key, "\r\n"))
        return error_set(err, "--api-key %s: cannot read a key from its first line", path);
    if (strlen(key) == size - 1)
        return error_set(err, "--api-key %s: the key is too long, at most %zu bytes", path,
                         size - 2);
    key[strcspn(key, "\r\n")] = 0;
    return 0;
}

/* Until a signal comes, or the device fails. */
static int serve_until_signal(struct demo *demo, const struct server_options *options,
                              struct error *err) {
    struct deployment deployed;
    struct error why = {{0}};
    bool v6 = strchr(options->host, ':') != NULL;
    int result = deployment_open(&deployed, demo, options, err);
    if (!result) {
        fprintf(stderr, "listening on http://%s%s%s:%d/ as model \"%s\", %s; Ctrl-C ends\n",
                v6 ? "[" : "", options->host, v6 ? "]" : "", deployed.server.port,
                demo->options.model, deployed.server.system_fingerprint);
        while (!generator_signalled(&demo->generator) && !service_ended(deployed.service)) {
            if (has_server(demo))
                server_check(&deployed.server);
            nanosleep(&(struct timespec){0, 50000000}, NULL);
        }
        fprintf(stderr, "ending: requests that run have %d seconds\n", PATIENCE);
    }
    if (deployment_close(&deployed, PATIENCE, &why) && !result)
        result = error_set(err, "%s", why.text);
    return result;
}

int deployment_run(struct demo *demo, struct error *err) {
    struct server_options options = deployment_limits(demo);
    char key[256];
    options.host = demo->options.host;
    options.port = demo->options.serve;
    options.log = true;
    signal(SIGPIPE, SIG_IGN); /* nobody reads the log any more */
#ifdef M_TRIM_THRESHOLD
    /* Else the ends of heaps are given back and gotten again, a megabyte up and down. */
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
    if (demo->options.api_key) {
        if (read_key(demo->options.api_key, key, sizeof key, err))
            return -1;
        options.key = key;
    }
    return serve_until_signal(demo, &options, err);
}
