/* The typical mistakes of lab 3: what each looks like from outside, and three hints. */
#include "tests/labs/03/causes.h"

#include <string.h>

static bool in(const struct lab_finding *f, const char *check) {
    return !strcmp(f->check->name, check);
}

static bool label_has(const struct lab_finding *f, const char *text) {
    return f->how == LAB_WRONG && strstr(f->label, text);
}

static bool no_room(const struct lab_finding *f) {
    return (f->how == LAB_MEMORY || f->how == LAB_UNDEFINED || f->how == LAB_CRASHED) &&
           f->check->step == 1;
}

static bool not_yet(const struct lab_finding *f) {
    return in(f, "add");
}

static bool number_again(const struct lab_finding *f) {
    return in(f, "forgotten");
}

static bool admitted_twice(const struct lab_finding *f) {
    return in(f, "preempted") && label_has(f, "admitted in ms");
}

static bool out_of_range(const struct lab_finding *f) {
    return in(f, "refused");
}

static bool who_waits(const struct lab_finding *f) {
    return in(f, "queue");
}

static bool first_time(const struct lab_finding *f) {
    return f->check->step == 2 && label_has(f, "first in ms");
}

static bool state_not_left(const struct lab_finding *f) {
    return in(f, "states");
}

static bool stopped_twice(const struct lab_finding *f) {
    return in(f, "stop");
}

static bool wrong_piece(const struct lab_finding *f) {
    return in(f, "one") || in(f, "budget");
}

static bool passed_over(const struct lab_finding *f) {
    return in(f, "cancelled");
}

static bool batch_is_joined(const struct lab_finding *f) {
    return in(f, "batch");
}

const struct lab_cause lab_3_causes[N_LAB_3_CAUSES] = {
    {"no room in the queue",
     no_room,
     {"Which request is the first that does not fit?",
      "jobs has room for `capacity`; with n_jobs == capacity it has to grow before the next.",
      "Look at the comparison before realloc in {scheduler_add}, and at the bytes of a job."}},
    {"a new request",
     not_yet,
     {"What is known of a request that has just come?",
      "It waits, all its prompt is to be read, nothing is read; what has not happened is at -1.",
      "Look at the job that {scheduler_add} fills in, and at the number it returns."}},
    {"a number that is free again",
     number_again,
     {"Request 0 is done and forgotten. Which number has the next?",
      "The last of s->forgotten, which then has one less; n_jobs grows only if there is none. The "
      "job begins anew, but for `order`, which counts all that ever came.",
      "Look at where {scheduler_add} chooses the number of the job."}},
    {"admitted twice",
     admitted_twice,
     {"A request gave way to others and reads its prompt again. When was it admitted?",
      "`admitted` is the end of its wait in the queue: from waiting to prefilling, and not from "
      "preempted to prefilling.",
      "Look at {change}: which state did the job have before?"}},
    {"out of range",
     out_of_range,
     {"Which arrivals and prompts cannot be?",
      "Refused are an empty prompt, a negative arrival, infinity, NaN (for which every comparison "
      "is false), and one before the last. Two may come at one moment.",
      "Look at the first lines of {scheduler_add}: !(arrival >= 0) is true for NaN, too."}},
    {"who waits",
     who_waits,
     {"Who is in the queue, and who of them has arrived?",
      "From queue_first to queue_end; one that arrives now has arrived.",
      "Look at the conditions in {scheduler_next_arrival} and {scheduler_waiting}: the ends of the "
      "queue, and <= "
      "now."}},
    {"the time of the first token",
     first_time,
     {"How often does a request draw its first token?",
      "`first` is set once, when n_new goes from 0 to 1.",
      "Look at where {scheduler_ran} sets first."}},
    {"a state is not left",
     state_not_left,
     {"Which state has a job after its first token, and after its last?",
      "The entry that draws the first token makes prefilling to decoding, and finish makes done. A "
      "job that is done stays as it is.",
      "Look at the order in {scheduler_ran}: done first, then what was read, then what was drawn, "
      "and what {change} sets."}},
    {"ended wrongly",
     stopped_twice,
     {"A job is stopped a second time. What happens?",
      "Nothing: it is done. The first time it leaves the lists, and its end is not before its "
      "arrival.",
      "Look at {scheduler_stop}: the state, the two lists, and the later of now and arrival."}},
    {"a piece of the wrong size",
     wrong_piece,
     {"Ten tokens are left, a chunk is six, the budget has four: how many are read?",
      "A piece is the smallest of the three: what is left to read, the chunk, the budget.",
      "Look at {piece} or {plan_prefill}, and at {admit_queue} or {admit} for the order."}},
    {"one that was stopped is admitted",
     passed_over,
     {"Somebody gives up while he waits. Whose turn is it?",
      "A job that is stopped leaves the queue at once (queue_remove), so it is never started.",
      "Look at {admit_queue} or {admit}: the state is waiting before a job begins."}},
    {"who may come",
     batch_is_joined,
     {"Two may run, and one of them is done. May the third come?",
      "In a static batch nobody comes before all of it are done; then as many as there are places, "
      "in order of arrival, of those that have arrived.",
      "Look at {admit_queue} or {admit}: batch_runs, max_running, arrival <= now."}},
};
