/*
 * shared_memory.cpp - a block's shared memory and the shadow that finds its misuse.
 *
 * All variables of a block lie in one arena with nobody's bytes between them. The shadow of each
 * byte tells who wrote and who read it, and when. Two accesses of different threads, at least one
 * of them a write, are in order when a barrier came between, or, in one warp, a __syncwarp of both
 * lanes; else they race. This is the happens-before test of Flanagan and Freund, "FastTrack", 2009,
 * with the clocks that barriers allow to be simple.
 */
#include "gpu/emu/engine.h"

#include <stdio.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

namespace emu {

void fill_with_junk(void *data, size_t bytes) {
    const uint32_t junk = 0x7ff8dead;
    unsigned char *to = static_cast<unsigned char *>(data);
    size_t whole = bytes / sizeof junk * sizeof junk;
    for (size_t i = 0; i < whole; i += sizeof junk)
        memcpy(to + i, &junk, sizeof junk);
    memcpy(to + whole, &junk, bytes - whole);
}

void arena_create(struct arena *a) {
    a->bytes = static_cast<unsigned char *>(map_memory(ARENA_BYTES));
    a->owners = static_cast<unsigned char *>(map_memory(ARENA_BYTES));
    a->shadows = static_cast<struct shadow *>(map_memory(ARENA_BYTES * sizeof *a->shadows));
    a->is_split = static_cast<bool *>(map_memory(ARENA_BYTES / WORD));
    a->used = ARENA_BYTES; /* all of it must be made nobody's */
}

void arena_destroy(struct arena *a) {
    ASAN_UNPOISON_MEMORY_REGION(a->bytes, ARENA_BYTES);
    munmap(a->bytes, ARENA_BYTES);
    munmap(a->owners, ARENA_BYTES);
    munmap(a->shadows, ARENA_BYTES * sizeof *a->shadows);
    munmap(a->is_split, ARENA_BYTES / WORD);
}

static size_t round_up(size_t n, size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

static struct shared_variable *add_variable(struct arena *a, const struct emu_shared_site *site,
                                            size_t bytes, size_t alignment) {
    struct shared_variable *v = &a->variables[a->n_variables++];
    v->site = site;
    v->begin = round_up(a->used, alignment);
    v->end = v->begin + bytes;
    a->used = v->end + SHARED_GAP;
    a->variable_bytes = round_up(a->variable_bytes, alignment) + bytes;
    memset(a->owners + v->begin, (int)a->n_variables, bytes);
    ASAN_UNPOISON_MEMORY_REGION(a->bytes + v->begin, bytes);
    fill_with_junk(a->bytes + v->begin, bytes);
    return v;
}

void arena_begin_launch(struct arena *a, size_t dynamic_bytes) {
    memset(a->owners, 0, a->used);
    ASAN_POISON_MEMORY_REGION(a->bytes, ARENA_BYTES);
    a->n_variables = 0;
    a->used = SHARED_GAP;
    a->variable_bytes = 0;
    add_variable(a, NULL, dynamic_bytes, 1024);
}

void arena_begin_block(struct arena *a) {
    for (size_t i = 0; i < a->n_variables; i++)
        fill_with_junk(a->bytes + a->variables[i].begin,
                       a->variables[i].end - a->variables[i].begin);
}

void arena_clear_shadow(struct arena *a) {
    memset(static_cast<void *>(a->shadows), 0, ARENA_BYTES * sizeof *a->shadows);
    memset(a->is_split, 0, ARENA_BYTES / WORD);
}

/* ---- faults --------------------------------------------------------------------------------- */

/* "byte 12 of shared `name`", or how far from the variable before it. */
static struct place shared_name(const struct arena *a, size_t offset) {
    const struct shared_variable *v = &a->variables[0];
    for (size_t i = 1; i < a->n_variables && a->variables[i].begin <= offset; i++)
        v = &a->variables[i];
    const char *name = v->site ? v->site->name : "dynamic memory";
    struct place place;
    if (offset >= v->end)
        snprintf(place.text, sizeof place.text, "%zu bytes past the end of shared %s (%zu bytes)",
                 offset - v->end, name, v->end - v->begin);
    else if (offset < v->begin)
        snprintf(place.text, sizeof place.text, "%zu bytes before shared %s", v->begin - offset,
                 name);
    else
        snprintf(place.text, sizeof place.text, "byte %zu of shared %s", offset - v->begin, name);
    return place;
}

static const char *const verbs[] = {"reads", "writes", "atomically changes"};

[[noreturn]] static void fault_race(const struct cuda_thread *t, size_t offset, enum access how,
                                    const char *other, const char *did, code_address from) {
    fault(t, EMU_SHARED_RACE, "%s %s, which %s %s, with no barrier between%s", verbs[how],
          shared_name(&t->worker->arena, offset).text, other, did, code_place(from).text);
}

/* ---- the shadow ----------------------------------------------------------------------------- */

/* Whether what lane `lane` of t's warp did at `time` is before what t does now. */
static bool lane_is_ordered(const struct cuda_thread *t, unsigned lane, uint32_t time) {
    const struct warp *warp = t->warp;
    return time < warp->synced ||
           (warp->synced_partly && time < warp->known[t->number % WARP][lane]);
}

static bool write_is_ordered(const struct cuda_thread *t, const struct shadow *s) {
    return s->writer == t->number || s->write_time < t->worker->last_barrier ||
           (s->writer / WARP == t->number / WARP &&
            lane_is_ordered(t, s->writer % WARP, s->write_time));
}

/* The lanes of t's warp that read the byte unordered with t; t itself not counted. */
static uint32_t unordered_readers(const struct cuda_thread *t, const struct shadow *s) {
    uint32_t lanes = s->read_lanes & ~(1u << (t->number % WARP));
    if (s->read_time < t->warp->synced)
        return 0;
    for (uint32_t rest = t->warp->synced_partly ? lanes : 0; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        if (lane_is_ordered(t, lane, s->read_time))
            lanes &= ~(1u << lane);
    }
    return lanes;
}

[[noreturn]] static void fault_write_race(const struct cuda_thread *t, const struct shadow *s,
                                          size_t offset, enum access how, code_address from) {
    fault_race(t, offset, how, name_of(&t->worker->threads[s->writer]).text,
               s->written_atomically ? "changed atomically" : "wrote", from);
}

/* Checks a read that the quick test below did not find harmless. */
__attribute__((noinline)) static void check_read(struct cuda_thread *t, struct shadow *s,
                                                 size_t offset, code_address from) {
    if (s->write_time < t->worker->block_start)
        fault(t, EMU_SHARED_UNINITIALISED, "reads uninitialised %s%s",
              shared_name(&t->worker->arena, offset).text, code_place(from).text);
    if (!write_is_ordered(t, s))
        fault_write_race(t, s, offset, ACCESS_READ, from);
}

static inline void note_read(struct cuda_thread *t, struct shadow *s, size_t offset,
                             code_address from) {
    const struct worker *w = t->worker;
    if (s->write_time < w->block_start ||
        (s->write_time >= w->last_barrier && s->writer != t->number))
        check_read(t, s, offset, from);
    /* Between two barriers, warps run one after the other. So the first warp that read is enough to
     * convict any later one that writes, and will not itself write after a second one read. */
    uint8_t warp = (uint8_t)(t->number / WARP);
    uint32_t lane = 1u << (t->number % WARP);
    if (s->read_time < w->last_barrier) {
        s->read_warp = warp;
        s->read_lanes = lane;
    } else if (s->read_warp == warp) {
        s->read_lanes = unordered_readers(t, s) | lane;
    }
    s->read_time = w->now;
}

/* Checks a write to a byte that somebody wrote or read since the last barrier, or an atomic one to
 * a byte that nobody wrote. */
__attribute__((noinline)) static void check_write(struct cuda_thread *t, const struct shadow *s,
                                                  size_t offset, enum access how,
                                                  code_address from) {
    struct worker *w = t->worker;
    bool atomic = how == ACCESS_ATOMIC;
    if (atomic && s->write_time < w->block_start)
        fault(t, EMU_SHARED_UNINITIALISED, "changes uninitialised %s%s",
              shared_name(&w->arena, offset).text, code_place(from).text);
    if (!write_is_ordered(t, s) && !(atomic && s->written_atomically))
        fault_write_race(t, s, offset, how, from);
    if (s->read_time < w->last_barrier)
        return;
    bool same_warp = s->read_warp == t->number / WARP;
    uint32_t lanes = same_warp ? unordered_readers(t, s) : s->read_lanes;
    if (!lanes)
        return;
    unsigned reader = s->read_warp * WARP + (unsigned)__builtin_ctz(lanes);
    fault_race(t, offset, how, name_of(&w->threads[reader]).text, "read", from);
}

/* Whether t's own plain write just before, which others may race with, must not be forgotten when
 * t changes the byte atomically. */
static bool hides_plain_write(const struct cuda_thread *t, const struct shadow *s) {
    return s->writer == t->number && !s->written_atomically && !t->warp->synced_partly &&
           s->write_time >= t->worker->last_barrier && s->write_time >= t->warp->synced;
}

static inline void note_write(struct cuda_thread *t, struct shadow *s, size_t offset,
                              enum access how, code_address from) {
    const struct worker *w = t->worker;
    if (s->write_time >= w->last_barrier || s->read_time >= w->last_barrier || how == ACCESS_ATOMIC)
        check_write(t, s, offset, how, from);
    s->written_atomically = how == ACCESS_ATOMIC && !hides_plain_write(t, s);
    s->read_time = 0;
    s->write_time = w->now;
    s->writer = (uint16_t)t->number;
}

static inline void note(struct cuda_thread *t, size_t offset, enum access how, code_address from) {
    struct shadow *s = &t->worker->arena.shadows[offset];
    if (how == ACCESS_READ)
        note_read(t, s, offset, from);
    else
        note_write(t, s, offset, how, from);
}

/* Whether one shadow will do for all bytes of a word: who wrote them does not matter any more, and
 * nobody has read them since. */
static bool share_history(const struct worker *w, const struct shadow *s) {
    for (size_t i = 0; i < WORD; i++)
        if (s[i].write_time < w->block_start || s[i].write_time >= w->last_barrier ||
            s[i].read_time >= w->last_barrier)
            return false;
    return true;
}

/* Accesses bytes of one word that have a shadow each, or get one now. */
static void note_in_word(struct cuda_thread *t, size_t offset, size_t bytes, enum access how,
                         code_address from) {
    struct arena *a = &t->worker->arena;
    size_t first = offset / WORD * WORD;
    bool *is_split = &a->is_split[first / WORD];
    if (bytes == WORD && how == ACCESS_READ && share_history(t->worker, &a->shadows[first])) {
        *is_split = false;
        note(t, first, how, from);
        return;
    }
    for (size_t i = 1; i < WORD && !*is_split; i++)
        a->shadows[first + i] = a->shadows[first];
    for (size_t i = offset; i < offset + bytes; i++)
        note(t, i, how, from);
    *is_split = bytes < WORD || how != ACCESS_WRITE; /* a plain write leaves the same in all four */
}

void shared_access(struct cuda_thread *t, size_t offset, size_t bytes, enum access how,
                   code_address from) {
    struct arena *a = &t->worker->arena;
    size_t end = offset + bytes;
    unsigned char owner = a->owners[offset];
    /* Gaps lie between variables, so with both ends the middle is the owner's, too. */
    if (!owner || end > ARENA_BYTES || a->owners[end - 1] != owner) {
        size_t bad = owner ? a->variables[owner - 1].end : offset;
        fault(t, EMU_SHARED_BOUNDS, "%s %zu bytes, %s%s", verbs[how], bytes,
              shared_name(a, bad).text, code_place(from).text);
    }
    bool whole = (offset | bytes) % WORD == 0;
    for (size_t i = offset; i < end; i += whole ? WORD : 1) {
        if (whole && !a->is_split[i / WORD])
            note(t, i, how, from);
        else
            note_in_word(t, i, whole ? WORD : 1, how, from);
    }
}

} // namespace emu

using namespace emu;

void *emu_shared_variable(const struct emu_shared_site *site) {
    struct cuda_thread *t = self;
    struct arena *a = &t->worker->arena;
    for (size_t i = 1; i < a->n_variables; i++)
        if (a->variables[i].site == site)
            return a->bytes + a->variables[i].begin;
    const struct launch *launch = t->worker->launch;
    size_t alignment = max(site->alignment, (size_t)16);
    if (a->n_variables == MAX_SHARED_VARIABLES ||
        round_up(a->variable_bytes, alignment) + site->bytes > launch->shared_limit ||
        round_up(a->variable_bytes, alignment) + site->bytes >
            launch->dynamic_bytes + DEFAULT_SHARED)
        fault(
            t, EMU_SHARED_BOUNDS,
            "%s with %zu bytes is too much: the block has %zu bytes of shared memory and may have "
            "%zu, at most %d of them static",
            site->name, site->bytes, a->variable_bytes, launch->shared_limit, DEFAULT_SHARED);
    return a->bytes + add_variable(a, site, site->bytes, alignment)->begin;
}

void *emu_shared_dynamic(void) {
    struct arena *a = &self->worker->arena;
    return a->bytes + a->variables[0].begin;
}
