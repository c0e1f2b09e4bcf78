/*
 * served.h - phase 12's demo as a server in a process of its own, and clients as small as can be.
 * What does not work fails the cmocka test, unless it says otherwise.
 */
#ifndef SAMEBITS_TESTS_SERVED_H
#define SAMEBITS_TESTS_SERVED_H

#include "model/files/json.h"

#include <stdarg.h>
#include <sys/types.h>

struct served {
    pid_t pid;
    int port;
    char log[40]; /* the file that its stderr goes to; "": another one */
};

struct served_options {
    const char *arguments; /* more of them, with blanks between; NULL: none */
    const char *log;       /* file for its stderr; NULL: a new one */
    int most_files;        /* descriptors that it may have; 0: as we may */
    int phase;             /* whose demo it is; 0: phase 12's */
    int lose_at; /* its device is the emulation, and lost at this call (gpu/emu/controls.h);
                    0: neither */
};

/* Starts it on the device that SAMEBITS_DEVICE names (cpu when it is not set) and waits until it
 * listens. */
struct served served_start(const struct served_options *options);

/* Sends a signal and waits. Returns the exit status, or minus the signal that ended it. Removes the
 * log that it made itself. */
int served_end(struct served *s, int signal);

/* The log so far, malloc'ed. */
char *served_log(const struct served *s);

/* A connection whose reads wait 120 seconds at most; -1 when it cannot be had. */
int served_connect(const struct served *s);

/* Sends all n bytes. Returns whether they went out. */
bool served_send(int fd, const void *bytes, size_t n);

/* A request with HTTP 1.0; head: more lines of the head, each with its end. Returns whether it went
 * out. */
bool served_post(int fd, const char *method, const char *path, const char *head, const char *body);

/* Reads to the end of the connection. Returns what came, malloc'ed and with a NUL behind it. */
char *served_read(int fd);

/* Connects, asks, reads, closes. */
char *served_ask(const struct served *s, const char *method, const char *path, const char *head,
                 const char *body);

/* The status of an answer; 0: it is none. */
int served_status(const char *answer);

/* The first fingerprint in an answer, into out; false: there is none. */
bool served_fingerprint(const char *answer, char out[17]);

/* Whether it runs under a sanitizer, ten times as slowly: fewer tokens are enough then. */
bool served_is_slow(void);

/* The JSON of an answer, which has some. */
json_t *served_json(const char *answer);

/* Waits until nothing runs or waits, and no block of the pool is used; head as for
 * served_post. */
void served_wait_idle(const struct served *s, const char *head);

#endif
