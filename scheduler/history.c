#include "scheduler/history.h"

#include "scheduler/own_caches.h"
#include "scheduler/paged_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A request as it was told of last. */
struct told {
    bool is_told;
    long order, sample_of; /* -1: of none */
    enum request_state state;
    int n_prompt, n_read, n_to_read, n_new, capacity;
    size_t n_text;
    const int32_t *blocks; /* [n_blocks]: own_blocks, or those of a table */
    int n_blocks;
    int32_t *own_blocks; /* [room] */
    int room;
};

/* A memory with blocks is that of a pool. */
static const struct paged_memory *paged(const struct request_memory *m) {
    return m->block_bytes ? (const struct paged_memory *)m : NULL;
}

void history_start(struct history *h, const struct request_memory *memory, bool texts, double now) {
    *h = (struct history){.memory = memory, .texts = texts, .began = now};
}

void history_end(struct history *h) {
    for (int i = 0; i < h->n_told; i++)
        free(h->told[i].own_blocks);
    free(h->told);
    free(h->references);
    json_decref(h->counts);
    *h = (struct history){0};
}

/* ---- what there is to tell ------------------------------------------------------------------- */

/* Numbers of the engine, and blocks of the pool. Returns whether there is room for them. */
static bool make_room(struct history *h, const struct engine *e) {
    const struct paged_memory *m = paged(h->memory);
    if (e->n > h->n_told) {
        struct told *told = realloc(h->told, sizeof *told * (size_t)e->capacity);
        if (!told)
            return false;
        memset(told + h->n_told, 0, sizeof *told * (size_t)(e->capacity - h->n_told));
        h->told = told;
        h->n_told = e->capacity;
    }
    if (m && !h->references) {
        int total = m->pool->blocks.stats.total;
        h->n_blocks = total < HISTORY_BLOCKS ? total : HISTORY_BLOCKS;
        h->all_blocks = total;
        h->block_size = m->pool->block_size;
        h->references = calloc((size_t)h->n_blocks + 1, sizeof *h->references);
    }
    return !m || h->references;
}

/* Whether request number i is of this history, and here already. */
static bool is_here(const struct history *h, const struct engine *e, int i, double now) {
    const struct job *j = &e->scheduler.jobs[i];
    bool told = i < h->n_told && h->told[i].is_told && h->told[i].order == j->order;
    return told || (j->arrival <= now && !(j->state == REQUEST_DONE && j->done < h->began));
}

static struct told look(const struct history *h, const struct engine *e, int i) {
    const struct job *j = &e->scheduler.jobs[i];
    const struct paged_memory *m = paged(h->memory);
    const struct kv_cache *own = m ? NULL : ((const struct own_caches *)h->memory)->caches[i].cache;
    int fork_of = e->in_memory[i].fork_of;
    struct told now = {.is_told = true,
                       .order = j->order,
                       .sample_of = fork_of < 0 ? -1 : e->scheduler.jobs[fork_of].order,
                       .state = j->state,
                       .n_prompt = j->n_prompt,
                       .n_read = j->n_read,
                       .n_to_read = j->n_to_read,
                       .n_new = j->n_new,
                       .capacity = own ? own->capacity : 0,
                       .n_text = h->texts ? e->answers[i].n_text : 0};
    if (m) {
        const struct block_table *t = &m->jobs[i].cache.table;
        now.blocks = t->blocks;
        while (now.n_blocks < t->n_blocks && t->blocks[now.n_blocks] < h->n_blocks)
            now.n_blocks++;
    }
    return now;
}

bool history_is_new(const struct history *h, const struct engine *e, double now) {
    for (int i = 0; i < e->n; i++) {
        const struct job *j = &e->scheduler.jobs[i];
        if (is_here(h, e, i, now) && (i >= h->n_told || !h->told[i].is_told ||
                                      h->told[i].order != j->order || h->told[i].state != j->state))
            return true;
    }
    return false;
}

/* ---- telling it ------------------------------------------------------------------------------ */

static void put(json_t *object, const char *key, long was, long is) {
    if (was != is)
        json_object_set_new(object, key, json_integer(is));
}

static void put_blocks(json_t *object, const struct told *was, const struct told *is) {
    int keep = 0;
    while (keep < was->n_blocks && keep < is->n_blocks && was->blocks[keep] == is->blocks[keep])
        keep++;
    if (keep < was->n_blocks)
        json_object_set_new(object, "keep", json_integer(keep));
    if (keep == is->n_blocks)
        return;
    json_t *list = json_array();
    for (int i = keep; i < is->n_blocks; i++)
        json_array_append_new(list, json_integer(is->blocks[i]));
    json_object_set_new(object, "blocks", list);
}

/* An object of all that differs but texts; NULL: nothing. */
static json_t *difference(const struct told *was, const struct told *is) {
    json_t *object = json_object();
    if (!was->is_told || was->state != is->state)
        json_object_set_new(object, "state", json_string(request_state_name(is->state)));
    put(object, "prompt", was->n_prompt, is->n_prompt);
    put(object, "read", was->n_read, is->n_read);
    put(object, "to_read", was->n_to_read, is->n_to_read);
    put(object, "new", was->n_new, is->n_new);
    put(object, "capacity", was->capacity, is->capacity);
    if (!was->is_told)
        put(object, "sample_of", -1, is->sample_of);
    put_blocks(object, was, is);
    if (!json_object_size(object)) {
        json_decref(object);
        return NULL;
    }
    json_object_set_new(object, "id", json_integer(is->order));
    return object;
}

/* forgotten: its answer may be gone. */
static void put_end(json_t *object, const struct engine *e, int i, bool forgotten) {
    char text[17];
    const struct fingerprint *f = &e->answers[i].sequence.fingerprint;
    json_object_set_new(object, "finish", json_string(finish_name(e->scheduler.jobs[i].finish)));
    if (forgotten || !e->scheduler.jobs[i].n_new)
        return;
    snprintf(text, sizeof text, "%016llx", (unsigned long long)fingerprint_value(f));
    json_object_set_new(object, "fingerprint", json_string(text));
}

/* What the last step has read for request i. */
static void put_piece(json_t *object, const struct engine *e, int i) {
    for (int k = 0; k < e->n_planned; k++)
        if (e->plan[k].job == i) {
            json_object_set_new(object, "first", json_integer(e->plan[k].first));
            json_object_set_new(object, "piece", json_integer(e->plan[k].n_tokens));
        }
}

static void put_text(json_t *object, const struct engine *e, int i, size_t told) {
    const struct answer *a = &e->answers[i];
    if (a->n_text < told)
        json_object_set_new(object, "whole", json_stringn(a->text, a->n_text));
    else if (a->n_text > told)
        json_object_set_new(object, "text", json_stringn(a->text + told, a->n_text - told));
}

/* Remembers what was told. Returns whether there was memory. */
static bool keep(struct told *told, const struct told *is) {
    int32_t *blocks = told->own_blocks;
    int room = told->room;
    if (is->n_blocks > room) {
        room = 2 * is->n_blocks;
        blocks = realloc(blocks, sizeof *blocks * (size_t)room);
        if (!blocks)
            return false;
    }
    if (is->n_blocks)
        memcpy(blocks, is->blocks, sizeof *blocks * (size_t)is->n_blocks);
    *told = *is;
    told->blocks = told->own_blocks = blocks;
    told->room = room;
    return true;
}

/* Adds what is new of request i to the list. */
static void tell(struct history *h, const struct engine *e, int i, json_t *list) {
    struct told *told = &h->told[i], is = look(h, e, i);
    if (told->is_told && told->order != is.order) { /* the number is another's now */
        if (told->state != REQUEST_DONE)
            json_array_append_new(list,
                                  json_pack("{sI ss si}", "id", (json_int_t)told->order, "state",
                                            request_state_name(REQUEST_DONE), "keep", 0));
        *told = (struct told){.own_blocks = told->own_blocks, .room = told->room};
    }
    json_t *object = difference(told, &is);
    if (!object)
        return;
    if (e->steps != h->steps)
        put_piece(object, e, i);
    if (h->texts && !told->is_told && e->requests[i]->title)
        json_object_set_new(object, "title", json_string(e->requests[i]->title));
    if (h->texts)
        put_text(object, e, i, told->n_text);
    if (is.state == REQUEST_DONE && (!told->is_told || told->state != REQUEST_DONE))
        put_end(object, e, i, !h->texts);
    json_array_append_new(list, object);
    h->failed = !keep(told, &is) || h->failed;
}

static json_t *tell_references(struct history *h) {
    const struct paged_memory *m = paged(h->memory);
    json_t *list = json_array();
    for (int b = 0; m && b < h->n_blocks; b++) {
        int32_t n = m->pool->blocks.references[b];
        if (n != h->references[b])
            json_array_append_new(list, json_pack("[ii]", b, n));
        h->references[b] = n;
    }
    return list;
}

static json_t *tell_counts(const struct history *h, const struct engine *e, double now) {
    const struct paged_memory *m = paged(h->memory);
    json_t *change =
        json_pack("{sI sf sI si}", "step", (json_int_t)e->steps, "time", now, "drawn",
                  (json_int_t)e->drawn, "waiting", scheduler_waiting(&e->scheduler, now));
    if (m)
        json_object_update_new(change, json_pack("{si si sI}", "used", m->pool->blocks.stats.used,
                                                 "cached", m->pool->blocks.stats.cached,
                                                 "preemptions", (json_int_t)m->stats.preemptions));
    return change;
}

json_t *history_take(struct history *h, const struct engine *e, double now) {
    if (!make_room(h, e)) {
        h->failed = true;
        return NULL;
    }
    json_t *requests = json_array(), *references;
    for (int i = 0; i < e->n; i++)
        if (is_here(h, e, i, now))
            tell(h, e, i, requests);
    references = tell_references(h);
    json_t *change = tell_counts(h, e, now);
    bool same = !json_array_size(requests) && !json_array_size(references);
    h->steps = e->steps;
    json_decref(h->counts);
    h->counts = json_copy(change);
    json_object_set_new(change, "requests", requests);
    json_object_set_new(change, "references", references);
    if (same) {
        json_decref(change);
        return NULL;
    }
    h->failed = h->failed || !change;
    return change;
}

json_t *history_all(const struct history *h) {
    static const struct told nothing;
    json_t *requests = json_array(), *references = json_array();
    for (int i = 0; i < h->n_told; i++)
        if (h->told[i].is_told && h->told[i].state != REQUEST_DONE)
            json_array_append_new(requests, difference(&nothing, &h->told[i]));
    for (int b = 0; b < h->n_blocks; b++)
        if (h->references[b])
            json_array_append_new(references, json_pack("[ii]", b, (int)h->references[b]));
    json_t *change = h->counts ? json_copy(h->counts) : json_object();
    json_object_set_new(change, "requests", requests);
    json_object_set_new(change, "references", references);
    return change;
}
