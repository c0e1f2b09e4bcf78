#include "tutorials/12-server/house.h"

#include "tutorials/common/pool.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { PATIENCE = 10 };

int house_open(struct house *h, struct demo *demo, const struct server_options *options,
               struct error *err) {
    struct paged_options paged = {(enum preempt_mode)demo->options.preempt,
                                  !demo->options.no_prefix_cache};
    struct service_options service = {.scheduler = {demo->options.max_running,
                                                    demo->options.token_budget, demo->options.chunk,
                                                    true},
                                      .memory = &h->memory,
                                      .tokenizer = demo->tokenizer,
                                      .max_waiting = demo->options.max_waiting,
                                      .stepped = server_stepped,
                                      .context = &h->server};
    *h = (struct house){
        .server = {.lock = PTHREAD_MUTEX_INITIALIZER, .view.lock = PTHREAD_MUTEX_INITIALIZER}};
    if (demo_pool_start(demo, &h->pool, 0, err))
        return -1;
    paged_memory_start(&h->memory, &h->pool, &paged);
    h->service = service_start(&demo->generator, &service, err);
    if (!h->service)
        return -1;
    return server_start(&h->server, demo, h->service, options, err);
}

int house_close(struct house *h, double patience, struct error *err) {
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
    key[strcspn(key, "\r\n")] = 0;
    return 0;
}

int house_serve(struct demo *demo, struct error *err) {
    const struct options *o = &demo->options;
    struct house house;
    struct error why = {{0}};
    char key[256];
    struct server_options options = {.host = o->host,
                                     .port = o->serve,
                                     .most_body = MOST_BODY,
                                     .idle_limit = IDLE_LIMIT,
                                     .most_connections = MOST_CONNECTIONS,
                                     .log = true};
    if (o->api_key) {
        if (read_key(o->api_key, key, sizeof key, err))
            return -1;
        options.key = key;
    }
    int result = house_open(&house, demo, &options, err);
    if (!result) {
        fprintf(stderr, "listening on http://%s:%d/ as model \"%s\", %s; Ctrl-C ends\n", o->host,
                house.server.port, o->model, house.server.system_fingerprint);
        while (!demo_interrupted(demo) && !service_ended(house.service))
            nanosleep(&(struct timespec){0, 50000000}, NULL);
        fprintf(stderr, "ending: requests that run have %d seconds\n", PATIENCE);
    }
    if (house_close(&house, PATIENCE, &why) && !result)
        result = error_set(err, "%s", why.text);
    return result;
}
