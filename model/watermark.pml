/*
 * The low watermark: a claim looks from near the last message that this service claimed, and not
 * through all that is dead before it. What appears below it must be found all the same.
 *
 * Publishers take their due time when they insert, and commit later. Two threads of a service share
 * the watermark and the count of edits that it is based on. Another service gives back a message at
 * its old place, an operator edits one, and with STEPS the database's clock is set back.
 */
#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef THREADS
#define THREADS 2
#endif
#ifndef LAST
#define LAST 4
#endif
#ifndef SLACK
#ifdef NO_SLACK
#define SLACK 0
#else
#define SLACK 1
#endif
#endif
#define PROMISED 1                  /* the lateness of a commit that changes no order */

byte now = 2;
byte due[MESSAGES];
bool visible[MESSAGES];
bool claimed[MESSAGES];
byte edit_count;

/* Of the service. */
byte low;
#define UNKNOWN 255
byte known_edits = UNKNOWN;
bool full_look_due;

/* What no process can see. */
bool timely[MESSAGES];
bool edited[MESSAGES];
bool stepped;
byte got;

#define is_free(m) (visible[m] && !claimed[m])
#define is_due(m) (is_free(m) && due[m] <= now)

proctype publisher(byte m) {
    /* Transition publish: it is committed later. */
    due[m] = now;
    atomic { visible[m] = true; timely[m] = (now <= due[m] + PROMISED) }
}

proctype clock() {
#ifdef STEPS
    bool back;
#endif
    do
    :: atomic { now < LAST -> now++ }
#ifdef STEPS
    :: atomic { !back && now > 3 -> back = true; stepped = true; now = now - 2 }
#endif
    :: now == LAST -> break
    od
}

/* Transition claim: from a place on, unless the queue was edited since. */
inline claim(from, edits) {
    byte m, best;
    best = MESSAGES;
#ifdef WITHOUT_EDITS
    if
    :: true ->
#else
    if
    :: from > 0 && edits != edit_count
    :: else ->
#endif
        for (m : 0 .. MESSAGES - 1) {
            if
            :: is_due(m) && due[m] >= from && (best == MESSAGES || due[m] < due[best]) -> best = m
            :: else
            fi
        };
        for (m : 0 .. MESSAGES - 1) {
            if
            :: is_due(m) && (best == MESSAGES || due[m] < due[best]) ->
                /* Promise 4: oldest first. */
                assert(!timely[m] || stepped);
                /* An edit of the library is seen by the next claim of each consumer. */
                assert(!edited[m])
            :: else
            fi
        };
        if
        :: best < MESSAGES -> claimed[best] = true; timely[best] = false; edited[best] = false
        :: else
        fi
    fi;
    got = best;
    m = 0;
    best = 0
}

/* It raises the watermark, unless that is based on another count of edits by now. */
#define note_claim atomic { low = (due[mine] > SLACK -> due[mine] - SLACK : 0); note_nothing }
#define note_nothing full_look_due = (from == 0 -> false : full_look_due)

proctype thread() {
    byte from, edits, mine;
    /* The first count: read, then noted, unless another thread was first. */
    edits = edit_count;
    atomic {
#ifndef FIRST_REPLACED
        if
        :: known_edits == UNKNOWN -> known_edits = edits
        :: else
        fi;
#else
        known_edits = edits;
#endif
        edits = 0
    };
end:
    do
    :: true ->
#ifdef UNLOCKED
        edits = known_edits;
#endif
        atomic {
#ifndef UNLOCKED
            edits = known_edits;
#endif
            if
#ifdef NO_FULL_LOOK
            :: true -> from = low
#else
            :: full_look_due -> from = 0
            :: else -> from = low
#endif
            fi
        };
        atomic { claim(from, edits); mine = got; got = 0 };
#ifdef UNLOCKED
        if
        :: mine < MESSAGES && edits == known_edits -> note_claim
        :: mine < MESSAGES && edits != known_edits
        :: mine == MESSAGES && known_edits != edit_count -> known_edits = edit_count; low = 0
        :: mine == MESSAGES && known_edits == edit_count -> note_nothing
        fi;
        atomic { mine = 0; from = 0; edits = 0 }
#else
        atomic {
            if
#ifdef NOTE_STALE
            :: mine < MESSAGES -> note_claim
#else
            :: mine < MESSAGES && edits == known_edits -> note_claim
            :: mine < MESSAGES && edits != known_edits
#endif
            :: mine == MESSAGES && known_edits != edit_count -> known_edits = edit_count; low = 0
            :: mine == MESSAGES && known_edits == edit_count -> note_nothing
            fi;
            mine = 0; from = 0; edits = 0
        }
#endif
    od
}

/* A full look is due again after a while. */
proctype timer() {
end:
    do
    :: !full_look_due -> full_look_due = true
    od
}

/* Transition edit: an operator lets a message run first. */
proctype editor() {
    byte m;
    if
    :: m = 0
    :: m = 1
    fi;
    if
    :: atomic { is_free(m) -> due[m] = 1; edited[m] = true;
#ifndef COUNT_APART
            edit_count++
#endif
        };
#ifdef COUNT_APART
        edit_count++
#endif
    :: claimed[m]
    fi
}

/* Transition give back: by another service; the message keeps its place. */
proctype other() {
    if
    :: atomic { is_due(0) -> claimed[0] = true; timely[0] = false; edited[0] = false };
        claimed[0] = false
    :: claimed[0]
    fi
}

#ifdef STEPS
/* Transition keep due: after a step of the clock the reaper makes due again what was due. */
proctype reaper() {
    byte m;
    if
    :: atomic { stepped ->
            for (m : 0 .. MESSAGES - 1) {
                if
                :: is_free(m) && due[m] > now -> due[m] = now; edited[m] = true
                :: else
                fi
            };
            edit_count++
        }
    :: now == LAST
    fi
}
#endif

init {
    byte m;
    atomic {
        full_look_due = true;
        for (m : 0 .. MESSAGES - 1) { run publisher(m) };
        run clock();
        for (m : 1 .. THREADS) { run thread() };
        run timer();
        run editor();
        run other()
#ifdef STEPS
        ; run reaper()
#endif
    }
}

#if MESSAGES == 2
ltl found { <> [] (claimed[0] && claimed[1]) }
#else
ltl found { <> [] (claimed[0] && claimed[1] && claimed[2]) }
#endif
