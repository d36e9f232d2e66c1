/*
 * Two clocks: the database's says when a lease or a heartbeat is over, a clock of the process that
 * nobody can set says when the process must hold itself for dead. And clocks of other machines,
 * which are wrong, say nothing.
 *
 * A heartbeat is sent, written and answered in three steps, with any time between them.
 */
#ifndef LAST
#define LAST 7
#endif
#define TIMEOUT 2
#define LEASE 2
#define WRONG 3                     /* how far the clock of another machine is ahead */

byte time;                          /* the true one, which nobody sees */
byte offset = 1;                    /* of the database's clock */
bool stepped;
#define now (time + offset)

/* The row of the consumer and the row of its message. */
byte expires_at;
bool dead;
byte lease_expires_at;
bool claimed;

/* Of the process: it holds itself for alive before its deadline. */
byte deadline;
bool over;
#define looks_alive (!over && time < deadline)

byte claimed_at;

proctype clock() {
end:
    do
    :: atomic { time < LAST -> time++ }
    /* The database's clock is set; the promises of this file are excused then. */
    :: atomic { !stepped && time > 0 -> stepped = true; offset = 3 }
    :: atomic { !stepped && time > 0 -> stepped = true; offset = 0 }
    od
}

proctype consumer() {
    byte sent;
    bool answer;
    /* Transition register: the deadline is set before the statement is sent. */
    sent = time;
    atomic {
        expires_at = now + TIMEOUT;
#ifdef DEADLINE_AFTER_ANSWER
    };
    atomic { deadline = time + TIMEOUT };
#else
        deadline = sent + TIMEOUT
    };
#endif
    /* Transition claim: once; it is late if the process holds itself for dead. */
    atomic {
        claimed = true;
        claimed_at = time;
#ifdef CLOCK_OF_THE_APPLICATION
        lease_expires_at = time + LEASE
#else
        lease_expires_at = now + LEASE
#endif
    };
end:
    do
    /* Transition heartbeat: sent, written, answered. */
    :: looks_alive ->
        sent = time;
        atomic {
            answer = !dead;
            if
            :: !dead -> expires_at = now + TIMEOUT
            :: else
            fi
        };
        atomic {
            if
            :: !answer -> over = true
#ifdef DEADLINE_AFTER_ANSWER
            :: answer -> deadline = time + TIMEOUT
#else
            :: answer && sent + TIMEOUT > deadline -> deadline = sent + TIMEOUT
            :: answer && sent + TIMEOUT <= deadline
#endif
            fi
        }
    od
}

proctype reaper() {
end:
    do
    /* Transition declare dead: by the database's clock. */
#ifdef CLOCK_OF_THE_REAPER
    :: atomic { expires_at > 0 && !dead && expires_at <= now + WRONG ->
#else
    :: atomic { expires_at > 0 && !dead && expires_at <= now ->
#endif
            dead = true;
            /* Who is declared dead has known that before. */
            assert(stepped || time >= deadline)
        }
#ifndef NO_RESTORE
    /* Transition restore expired: by the database's clock. */
#ifdef CLOCK_OF_THE_REAPER
    :: atomic { claimed && lease_expires_at <= now + WRONG ->
#else
    :: atomic { claimed && lease_expires_at <= now ->
#endif
            claimed = false;
            /* Promise 5: a claim lasts its lease, whatever clocks of machines say. */
            assert(stepped || time >= claimed_at + LEASE)
        }
#endif
    od
}

init {
    atomic { run clock(); run consumer(); run reaper() }
}

/* A claim never lasts for ever: the message comes back even if nobody settles it. A lease that ends
   after the last moment of this model is excused. */
ltl comes_back { [] (claimed -> <> (!claimed || lease_expires_at > LAST + offset)) }
