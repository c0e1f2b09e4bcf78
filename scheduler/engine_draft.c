#include "scheduler/engine_draft.h"

#include "scheduler/draft.h"

/* The longest draft of a request whose tokens may all come to be stored. */
static int most_drafted(const struct engine *e, int i) {
    return e->in_memory[i].max_positions - e->answers[i].sequence.n_tokens;
}

void engine_count_draft(struct engine *e, int i) {
    int n = e->answers[i].sequence.n_draft, most = most_drafted(e, i);
    e->scheduler.jobs[i].n_draft = n < most ? n : most;
}

int engine_draft(struct engine *e, struct error *err) {
    const struct scheduler *s = &e->scheduler;
    int n = 0;
    for (int i = 0; i < s->n_running && e->generator->drafter; i++) {
        int job = s->running[i];
        struct sequence *sequence = &e->answers[job].sequence;
        if (s->jobs[job].state != REQUEST_DECODING ||
            sequence_new_tokens(sequence) < sequence->n_forced)
            continue;
        e->drafted[n] = sequence;
        e->most_drafted[n++] = most_drafted(e, job);
    }
    if (drafter_propose(e->generator->drafter, e->drafted, e->most_drafted, n, err))
        return -1;
    for (int i = 0; i < s->n_running; i++)
        engine_count_draft(e, s->running[i]);
    return 0;
}

void engine_count_accepted(struct engine *e, const struct plan_entry *ran) {
    const struct sequence *s = &e->answers[ran->job].sequence;
    struct job *j = &e->scheduler.jobs[ran->job];
    bool counts = ran->draws && !s->n_forced;
    e->proposed += counts ? s->drafting.last_proposed : 0;
    e->accepted += counts ? s->drafting.last_accepted : 0;
    j->n_draft = ran->draws ? sequence_new_tokens(s) - j->n_new - 1 : 0;
}
