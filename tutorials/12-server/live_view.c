#include "tutorials/12-server/server.h"

#include <stdlib.h>
#include <string.h>

/* How often the view is made at most, how long after the last look, and how much of a pool it has:
 * in seconds and blocks. */
static const double every = 0.1, interest = 2;
enum { MOST_BLOCKS = 4096 };

static json_t *request_json(const struct engine *e, int i, double now) {
    const struct job *j = &e->scheduler.jobs[i];
    const struct paged_memory *m = (const struct paged_memory *)e->options->memory;
    const struct block_table *t = &m->jobs[i].cache.table;
    json_t *blocks = json_array();
    for (int k = 0; k < t->n_blocks && t->blocks[k] < MOST_BLOCKS; k++)
        json_array_append_new(blocks, json_integer(t->blocks[k]));
    return json_pack("{sI ss si si si sf so}", "id", (json_int_t)j->order, "state",
                     request_state_name(j->state), "prompt", j->n_prompt, "read", j->n_read, "new",
                     j->n_new, "seconds", now - j->arrival, "blocks", blocks);
}

static json_t *requests_json(const struct engine *e) {
    const struct scheduler *s = &e->scheduler;
    double now = engine_now(e);
    json_t *list = json_array();
    for (int i = 0; i < s->n_running; i++)
        json_array_append_new(list, request_json(e, s->running[i], now));
    for (int i = 0; i < s->n_preempted; i++)
        json_array_append_new(list, request_json(e, s->preempted[i], now));
    for (int i = s->queue_first; i < s->queue_end && i < s->queue_first + 64; i++)
        json_array_append_new(list, request_json(e, s->queue[i], now));
    return list;
}

/* For each block how many use it: 0 free, -1 cached. */
static json_t *references_json(const struct block_allocator *a) {
    json_t *list = json_array();
    for (int32_t b = 0; b < a->stats.total && b < MOST_BLOCKS; b++)
        json_array_append_new(list, json_integer(a->references[b]));
    return list;
}

void live_view_update(struct live_view *view, const struct engine *e) {
    const struct paged_memory *m = (const struct paged_memory *)e->options->memory;
    const struct block_allocator *a = &m->pool->blocks;
    double now = clock_now();
    pthread_mutex_lock(&view->lock);
    bool wanted =
        now - view->asked < interest && (now - view->made > every || !e->scheduler.n_running);
    pthread_mutex_unlock(&view->lock);
    if (!wanted && view->made > 0)
        return;
    json_t *state = json_pack("{si sI si si sI si sI so so}", "step", (int)e->steps, "tokens",
                              (json_int_t)e->drawn, "block_size", m->pool->block_size, "blocks",
                              a->stats.total, "used", (json_int_t)a->stats.used, "waiting",
                              e->scheduler.queue_end - e->scheduler.queue_first, "preemptions",
                              (json_int_t)m->stats.preemptions, "references", references_json(a),
                              "requests", requests_json(e));
    char *text = state ? json_dumps(state, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(state);
    pthread_mutex_lock(&view->lock);
    free(view->json);
    view->json = text;
    view->made = now;
    pthread_mutex_unlock(&view->lock);
}

char *live_view_text(struct live_view *view) {
    pthread_mutex_lock(&view->lock);
    view->asked = clock_now();
    char *text = strdup(view->json ? view->json : "{}");
    pthread_mutex_unlock(&view->lock);
    return text;
}
