#include "scheduler/workload.h"

#include "model/numerics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Arrivals are at most so late. */
#define MOST_SECONDS 1e9

const struct workload_mix workload_sharegpt = {.requests_per_second = 2,
                                               .prompt_median = 80,
                                               .prompt_sigma = 1.18,
                                               .answer_median = 240,
                                               .answer_sigma = 0.83,
                                               .most_prompt = 1024,
                                               .most_answer = 1024};

const struct workload_mix workload_short = {.requests_per_second = 8,
                                            .prompt_median = 20,
                                            .prompt_sigma = 0.5,
                                            .answer_median = 24,
                                            .answer_sigma = 0.5,
                                            .most_prompt = 128,
                                            .most_answer = 128};

void workload_free(struct workload *w) {
    for (int i = 0; i < w->n; i++) {
        struct request *r = &w->requests[i];
        if (r->fork_back) /* what it points to is the first sample's */
            continue;
        for (int s = 0; s < r->n_stops; s++)
            free(r->stops[s]);
        free(r->stops);
        free(r->prompt);
        free(w->titles[i]);
    }
    free(w->requests);
    free(w->titles);
    *w = (struct workload){0};
}

/* Room for one more; it is zero. */
static struct request *add(struct workload *w, struct error *err) {
    if (w->n == w->capacity) {
        int capacity = w->capacity ? 2 * w->capacity : 16;
        struct request *requests = realloc(w->requests, sizeof *requests * (size_t)capacity);
        w->requests = requests ? requests : w->requests;
        char **titles = realloc(w->titles, sizeof *titles * (size_t)capacity);
        w->titles = titles ? titles : w->titles;
        if (!requests || !titles) {
            error_set(err, "out of memory for %d requests", capacity);
            return NULL;
        }
        w->capacity = capacity;
    }
    w->requests[w->n] = (struct request){0};
    w->titles[w->n] = NULL;
    return &w->requests[w->n++];
}

/* ---- from a file ----------------------------------------------------------------------------- */

struct reading {
    struct workload *workload;
    const struct request *defaults;
    const struct workload_encoder *encoder;
    json_t *ids; /* an object: each id and where it was given */
};

/* A member of the line; NULL if it is absent or null. */
static const json_t *member(const json_t *line, const char *key) {
    const json_t *value = json_object_get(line, key);
    return json_is_null(value) ? NULL : value;
}

static int add_stop(struct request *r, const json_t *text, const char *where, struct error *err) {
    const char *stop = json_string_value(text);
    if (!stop || !*stop || strlen(stop) != json_string_length(text))
        return error_set(err,
                         "%s: stop: must be a text that is not empty and has no NUL character, or "
                         "a list of such",
                         where);
    char **stops = realloc(r->stops, sizeof *stops * ((size_t)r->n_stops + 1));
    if (!stops)
        return error_set(err, "out of memory");
    r->stops = stops;
    r->stops[r->n_stops] = strdup(stop);
    return r->stops[r->n_stops] ? (r->n_stops++, 0) : error_set(err, "out of memory");
}

static int read_stops(struct request *r, const json_t *line, const char *where, struct error *err) {
    const json_t *stop = member(line, "stop");
    if (!stop)
        return 0;
    if (!json_is_array(stop))
        return add_stop(r, stop, where, err);
    size_t i;
    json_t *text;
    json_array_foreach(stop, i, text) if (add_stop(r, text, where, err)) return -1;
    return 0;
}

static int check_keys(const json_t *line, const char *where, struct error *err) {
    static const char *const known[] = {"id",      "prompt",  "messages",    "tools",
                                        "max_new", "arrival", "temperature", "top_k",
                                        "top_p",   "seed",    "stop"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)line, key, value) {
        size_t i = 0, n = sizeof known / sizeof *known;
        while (i < n && strcmp(key, known[i]))
            i++;
        if (i == n)
            return error_set(
                err,
                "%s: %s: unknown; known are id, prompt, messages, tools, max_new, arrival, "
                "temperature, top_k, top_p, seed, stop",
                where, key);
    }
    return 0;
}

static int read_sampling(struct sampling_options *s, const json_t *line, const char *where,
                         struct error *err) {
    double temperature = s->temperature, top_p = s->top_p;
    const json_t *seed = member(line, "seed");
    if (json_get_double(line, "temperature", &temperature, where, err) ||
        json_get_double(line, "top_p", &top_p, where, err) ||
        json_get_int(line, "top_k", 0, INT32_MAX, &s->top_k, where, err))
        return -1;
    if (!(temperature >= 0 && temperature <= 1e30))
        return error_set(err, "%s: temperature: must be a number from 0 to 1e30", where);
    if (!(top_p >= 0 && top_p <= 1))
        return error_set(err, "%s: top_p: must be a number from 0 to 1", where);
    if (seed && (!json_is_integer(seed) || json_integer_value(seed) < 0))
        return error_set(err, "%s: seed: must be a whole number from 0 to 2^63-1", where);
    if (seed) {
        s->seed = (uint64_t)json_integer_value(seed);
        s->has_seed = true;
    }
    s->temperature = (float)temperature;
    s->top_p = (float)top_p;
    return 0;
}

/* The id of a line, NULL if it has none; no two lines may have the same. */
static int read_id(struct reading *reading, const json_t *line, const char *where, const char **id,
                   struct error *err) {
    if (json_get_text(line, "id", id, where, err))
        return -1;
    if (!*id)
        return 0;
    const json_t *first = json_object_get(reading->ids, *id);
    if (!**id)
        return error_set(err, "%s: id: must not be empty", where);
    if (first)
        return error_set(err, "%s: id: \"%s\" is taken by %s", where, *id,
                         json_string_value(first));
    if (json_object_set_new(reading->ids, *id, json_string_nocheck(where)))
        return error_set(err, "%s: id: out of memory", where);
    return 0;
}

/* What a terminal takes for a command becomes spaces: C0, delete, and C1 (U+0080 to U+009F, two
 * bytes). */
static void blank_controls(char *text) {
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)
            c[0] = c[1] = ' ';
        if (*c < ' ' || *c == 127)
            *c = ' ';
    }
}

/* The beginning of a prompt on one line, without what a terminal takes for a command. */
static char *make_title(const char *text) {
    enum { LENGTH = 24 };
    char *title = calloc(1, LENGTH + 4);
    size_t n = strcspn(text, "\n");
    if (!title)
        return NULL;
    bool cut = n > LENGTH;
    for (n = cut ? LENGTH : n; cut && n && ((unsigned char)text[n] & 0xc0) == 0x80;)
        n--; /* not within a character */
    memcpy(title, text, n);
    strcpy(title + n, cut ? "..." : "");
    blank_controls(title);
    return title;
}

static int read_prompt(struct workload *w, const struct workload_encoder *encoder,
                       const json_t *line, const char *id, const char *where, struct error *err) {
    struct request *r = &w->requests[w->n - 1];
    const json_t *messages = member(line, "messages");
    const char *prompt;
    size_t n = 0;
    if (json_get_text(line, "prompt", &prompt, where, err))
        return -1;
    if (!prompt == !messages)
        return error_set(err, "%s: needs either prompt or messages", where);
    if (prompt && member(line, "tools"))
        return error_set(err, "%s: tools: need messages", where);
    struct error why;
    if (messages && encoder->messages(encoder->context, line, where, &r->prompt, &n, err))
        return -1;
    if (prompt && encoder->prompt(encoder->context, prompt, &r->prompt, &n, &why))
        return error_set(err, "%s: prompt: %s", where, why.text);
    if (n > INT32_MAX / 4)
        return error_set(err, "%s: the prompt has too many tokens", where);
    r->n_prompt = (int)n;
    w->titles[w->n - 1] = make_title(id ? id : prompt ? prompt : "(messages)");
    return w->titles[w->n - 1] ? 0 : error_set(err, "out of memory");
}

static int read_object(struct reading *reading, const json_t *line, const char *where,
                       struct error *err) {
    const char *id;
    if (!json_is_object(line))
        return error_set(err, "%s: must be a string or an object with prompt or messages", where);
    struct request *r = add(reading->workload, err);
    if (!r)
        return -1;
    r->arrival = reading->defaults->arrival;
    r->max_new = reading->defaults->max_new;
    r->sampling = reading->defaults->sampling;
    if (check_keys(line, where, err) || read_id(reading, line, where, &id, err) ||
        json_get_int(line, "max_new", 1, 1 << 30, &r->max_new, where, err) ||
        json_get_double(line, "arrival", &r->arrival, where, err) ||
        read_sampling(&r->sampling, line, where, err) || read_stops(r, line, where, err))
        return -1;
    if (!(r->arrival >= 0 && r->arrival <= MOST_SECONDS))
        return error_set(err, "%s: arrival: must be a number of seconds from 0 to 1e9", where);
    return read_prompt(reading->workload, reading->encoder, line, id, where, err);
}

/* A text alone is an object with nothing but a prompt. */
static int read_line(void *context, const json_t *line, const char *where, struct error *err) {
    json_t *object = json_is_string(line) ? json_pack("{sO}", "prompt", line) : NULL;
    int result = read_object(context, object ? object : line, where, err);
    json_decref(object);
    return result;
}

/* A request while the list is sorted: qsort alone would not keep equal arrivals in their order. */
struct placed {
    struct request request;
    char *title;
    int place;
};

static int by_arrival(const void *x, const void *y) {
    const struct placed *a = x, *b = y;
    if (a->request.arrival != b->request.arrival)
        return a->request.arrival < b->request.arrival ? -1 : 1;
    return a->place - b->place;
}

static int sort_by_arrival(struct workload *w, struct error *err) {
    struct placed *all = malloc(sizeof *all * ((size_t)w->n + 1));
    if (!all)
        return error_set(err, "out of memory for %d requests", w->n);
    for (int i = 0; i < w->n; i++)
        all[i] = (struct placed){w->requests[i], w->titles[i], i};
    qsort(all, (size_t)w->n, sizeof *all, by_arrival);
    for (int i = 0; i < w->n; i++) {
        w->requests[i] = all[i].request;
        w->titles[i] = all[i].title;
    }
    free(all);
    return 0;
}

int workload_append(struct workload *w, struct workload *more, struct error *err) {
    int result = 0;
    for (int i = 0; i < more->n && !result; i++) {
        struct request *r = add(w, err);
        result = r ? 0 : -1;
        if (result)
            break;
        *r = more->requests[i];
        w->titles[w->n - 1] = more->titles[i];
        more->requests[i] = (struct request){0};
        more->titles[i] = NULL;
    }
    workload_free(more);
    return result ? -1 : sort_by_arrival(w, err);
}

int workload_read(struct workload *w, const char *path, const struct request *defaults,
                  const struct workload_encoder *encoder, struct error *err) {
    *w = (struct workload){0};
    struct reading reading = {w, defaults, encoder, json_object()};
    int result = reading.ids ? json_for_each_line(path, read_line, &reading, err)
                             : error_set(err, "%s: out of memory", path);
    json_decref(reading.ids);
    if (result)
        return -1;
    if (!w->n)
        return error_set(err, "%s: no prompts in it", path);
    return sort_by_arrival(w, err);
}

/* ---- at random ------------------------------------------------------------------------------- */

/* Numbers from a counter: the same on every machine. */
struct counter {
    uint64_t seed;
    uint32_t next;
};

/* Uniform in [0, 1), a multiple of 2^-53. */
static double uniform(struct counter *c) {
    return (double)num_draw(c->seed, 0, c->next++, (uint64_t)1 << 53) * 0x1p-53;
}

/* Exponential with mean 1, by comparisons alone (von Neumann, "Various techniques used in
 * connection with random digits", 1951): no logarithm, whose last bit libraries do not agree on. */
static double exponential(struct counter *c) {
    for (double whole = 0;; whole++) {
        double first = uniform(c), last = first;
        for (int run = 1;; run++) {
            double u = uniform(c);
            if (u >= last) {
                if (run % 2)
                    return whole + first;
                break;
            }
            last = u;
        }
    }
}

/* About normal: the sum of twelve uniform numbers. */
static double normal(struct counter *c) {
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += uniform(c);
    return sum;
}

static int length(struct counter *c, double median, double sigma, int most) {
    double n = median * (double)num_exp((float)(sigma * normal(c)));
    return n < 1 ? 1 : n > most ? most : (int)n;
}

int workload_random(struct workload *w, int n, const struct workload_mix *mix, int vocab_size,
                    const struct sampling_options *sampling, uint64_t seed, struct error *err) {
    struct counter c = {seed, 0};
    double time = 0;
    *w = (struct workload){0};
    for (int i = 0; i < n; i++) {
        struct request *r = add(w, err);
        if (!r)
            return -1;
        if (mix->requests_per_second > 0)
            time += exponential(&c) / mix->requests_per_second;
        if (time > MOST_SECONDS)
            return error_set(err,
                             "at %g requests per second, random request %d comes after %g seconds: "
                             "raise the rate",
                             mix->requests_per_second, i, MOST_SECONDS);
        r->arrival = time;
        r->sampling = *sampling;
        r->max_new = length(&c, mix->answer_median, mix->answer_sigma, mix->most_answer);
        r->n_prompt = length(&c, mix->prompt_median, mix->prompt_sigma, mix->most_prompt);
        r->prompt = malloc(sizeof *r->prompt * (size_t)r->n_prompt);
        w->titles[i] = make_title("(random)");
        if (!r->prompt || !w->titles[i])
            return error_set(err, "out of memory for a prompt of %d tokens", r->n_prompt);
        for (int j = 0; j < r->n_prompt; j++)
            r->prompt[j] = (int32_t)num_draw(seed, 1, c.next++, (uint64_t)vocab_size);
    }
    return 0;
}

int workload_fork(struct workload *w, int n, struct error *err) {
    size_t n_all = (size_t)w->n * (size_t)n;
    struct workload all = {.n = (int)n_all, .capacity = (int)n_all};
    all.requests = calloc(n_all + 1, sizeof *all.requests);
    all.titles = calloc(n_all + 1, sizeof *all.titles);
    if (n_all > INT32_MAX || !all.requests || !all.titles) {
        free(all.requests);
        free(all.titles);
        return error_set(err, "out of memory for %d samples of %d requests", n, w->n);
    }
    for (int i = 0; i < all.n; i++) {
        all.requests[i] = w->requests[i / n];
        all.requests[i].fork_back = i % n;
        all.requests[i].sampling.sample = (uint32_t)(i % n);
        all.titles[i] = w->titles[i / n];
    }
    free(w->requests);
    free(w->titles);
    *w = all;
    return 0;
}
