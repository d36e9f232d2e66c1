/*
 * One queue: publish, claim, settle, give back what the dead hold.
 *
 * Each atomic step is one transaction of the database. Processes crash, stop, and lose answers
 * between any two steps. Time has no numbers here: a lease may end and a heartbeat may be overdue at
 * any moment, so that every speed of every process, every pause and every step of the clock is among
 * the runs. What may go wrong at all is limited by FAULTS.
 *
 * Thread 0 and 1 belong to consumer 0, thread 2 to consumer 1, which never crashes. Messages are
 * claimed by BATCH, so that one waits in hand while another is worked on.
 */
#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef BATCH
#define BATCH 2
#endif
#define THREADS 3
#define CONSUMERS 2
#define IDENTITIES (CONSUMERS + FAULTS)
#define NOBODY 255
#define CALLBACK 100

/* The table of messages. */
mtype = { absent, live, done };
mtype state[MESSAGES] = absent;
byte consumer_id[MESSAGES] = NOBODY;
byte consumer_round[MESSAGES];
bool lease_over[MESSAGES];
bool key_taken[MESSAGES];

/* The table of consumers. Whoever is declared dead never lives again; then its row is removed. */
mtype = { unused, alive, overdue, dead, gone };
mtype seen[IDENTITIES] = unused;
byte identities;

/* What processes remember. A crash clears it. */
byte me[CONSUMERS];                 /* the present identity */
bool stopped[CONSUMERS];            /* crashed, and not started again */
byte rounds[IDENTITIES];            /* the number of the last claim */
byte hand[THREADS];                 /* a set of messages, one bit each */
byte hand_id[THREADS];
byte hand_round[THREADS];
bool unanswered[CONSUMERS];         /* a claim whose answer was lost */
byte lost_id[CONSUMERS];
byte lost_round[CONSUMERS];
bool token_out;                     /* a token that another process has */
byte token_message;
byte token_id;
byte token_round;

/* A claim that the server carries out after its client has given up. */
bool late;
byte late_id;
byte late_round;

/* What the promises are about, and no process can see. */
byte faults = FAULTS;
byte effects[MESSAGES];             /* how often the work was committed */
byte holder[MESSAGES] = NOBODY;     /* who claimed it last, and has not lost it */
bool by_token[MESSAGES];            /* only a token is left of the claim: nobody renews the lease */
bool robbed[IDENTITIES];            /* a message was taken from it as from a dead one */

byte x;                             /* of the steps below, which are atomic */
byte taken;

inline forget(m) {
    consumer_id[m] = NOBODY;
    consumer_round[m] = 0;
    lease_over[m] = false;
    holder[m] = NOBODY;
    by_token[m] = false
}

inline register(c) {
    me[c] = identities;
    seen[identities] = alive;
    identities++
}

#define is_free(m) (state[m] == live && consumer_id[m] == NOBODY)
#if MESSAGES == 2
#define anything_free (is_free(0) || is_free(1))
#define any(p) (p(0) || p(1))
#else
#define anything_free (is_free(0) || is_free(1) || is_free(2))
#define any(p) (p(0) || p(1) || p(2))
#endif

/* Transition claim: the oldest messages that nobody holds get the stamp. */
inline stamp(id, r, who) {
    taken = 0;
    x = 0;
    do
    :: x < MESSAGES ->
        if
        :: is_free(x) && (taken == 0 || BATCH > 1) ->
            consumer_id[x] = id;
            consumer_round[x] = r;
            lease_over[x] = false;
            holder[x] = who;
            by_token[x] = false;
            taken = taken | (1 << x)
        :: else
        fi;
        x++
    :: else -> break
    od;
    x = 0
}

/* The fence: the condition of whatever a consumer does to a message that it claimed. */
#if defined(NO_FENCE)
#define fence(m, id, r) (state[m] == live)
#elif defined(FENCE_WITHOUT_ROUND)
#define fence(m, id, r) (state[m] == live && consumer_id[m] == id)
#else
#define fence(m, id, r) (state[m] == live && consumer_id[m] == id && consumer_round[m] == r)
#endif
#ifdef TOKEN_WITHOUT_STAMP
#define token_fence(m, id, r) (state[m] == live)
#else
#define token_fence(m, id, r) fence(m, id, r)
#endif

/* Transition ack: in the transaction of the handler's own writes. */
inline finish(m, who) {
    assert(holder[m] == who);
    state[m] = done;
#ifndef KEY_AFTER_ACK
    key_taken[m] = true;
#endif
#ifdef EFFECT_BEFORE_ACK
    effects[m] = effects[m] + (who == CALLBACK -> 1 : 0);
#else
    effects[m]++;
#endif
    assert(effects[m] == 1);
    forget(m)
}

proctype publisher() {
    byte m;
    do
    :: m < MESSAGES ->
        /* Transition publish: the same key is taken once. */
        atomic {
            if
            :: state[m] == absent || (state[m] == done && !key_taken[m]) ->
                state[m] = live;
                holder[m] = NOBODY
            :: else
            fi;
            if
            :: m++
            :: faults > 0 -> faults--       /* the answer was lost: once more with the same key */
            fi
        }
    :: else -> break
    od
}

/* What a thread does with a message that it has in hand. */
#define has(t, m) (hand[t] & (1 << m))
#define mine(t, m) fence(m, hand_id[t], hand_round[t])

inline drop(t, m) {
    hand[t] = hand[t] & ~(1 << m);
    if
    :: hand[t] == 0 -> hand_id[t] = 0; hand_round[t] = 0
    :: else
    fi
}

inline settle(t, m) {
    if
    :: mine(t, m) -> finish(m, t)
    :: else                             /* ClaimLost */
    fi;
    drop(t, m)
}

inline give_back(t, m) {
    if
    :: mine(t, m) -> assert(holder[m] == t); forget(m)
    :: else
    fi;
    drop(t, m)
}

inline extend(t, m) {
    assert(holder[m] == t);
    lease_over[m] = false
}

inline pass_on(t, m) {
    token_out = true;
    token_message = m; token_id = hand_id[t]; token_round = hand_round[t];
    if
    :: mine(t, m) -> holder[m] = CALLBACK; by_token[m] = true
    :: else
    fi;
    drop(t, m)
}

/* Its own deadline ends an identity no later than the database does: see clocks.pml. A claim that was
   sent before is the late one. */
#define may_claim(t, c) (!stopped[c] && hand[t] == 0 && \
                         (seen[me[c]] == alive || seen[me[c]] == overdue))

proctype thread(byte t; byte c) {
    byte m, id, r;
end:
    do
    /* Transition claim: see stamp. */
#ifdef CLAIM_UNLOCKED
    :: atomic { may_claim(t, c) && anything_free ->
            m = (is_free(0) -> 0 : 1); id = me[c]; rounds[id]++; r = rounds[id] };
        atomic {
            if
            :: state[m] == live ->
                assert(consumer_id[m] == NOBODY);
                consumer_id[m] = id; consumer_round[m] = r; holder[m] = t;
                hand[t] = 1 << m; hand_id[t] = id; hand_round[t] = r
            :: else
            fi
        }
#else
    :: atomic { may_claim(t, c) && anything_free ->
            id = me[c];
#ifdef SAME_ROUND
            r = 1;
#else
            rounds[id]++;
            r = rounds[id];
#endif
            if
            :: stamp(id, r, t);
                hand[t] = taken; hand_id[t] = id; hand_round[t] = r;
#ifdef ACK_AT_CLAIM
                for (m : 0 .. MESSAGES - 1) {
                    if
                    :: taken & (1 << m) -> state[m] = done; key_taken[m] = true; forget(m)
                    :: else
                    fi
                }
#endif
            :: faults > 0 && !unanswered[c] ->
                /* The connection broke, after the server did it or before. */
                faults--;
                unanswered[c] = true; lost_id[c] = id; lost_round[c] = r;
                if
                :: stamp(id, r, NOBODY)
                :: !late -> late = true; late_id = id; late_round = r
                fi
            fi;
            taken = 0; m = 0; id = 0; r = 0
        }
#endif
    /* Transition ack: see finish. */
#if defined(ACK_AT_CLAIM)
    :: atomic { has(t, 0) -> effects[0]++; drop(t, 0) }
    :: atomic { has(t, 1) -> effects[1]++; drop(t, 1) }
#elif defined(EFFECT_BEFORE_ACK)
    :: atomic { has(t, 0) -> effects[0]++ }; atomic { if :: has(t, 0) -> settle(t, 0) :: else fi }
#elif defined(KEY_AFTER_ACK)
    :: atomic { has(t, 0) -> settle(t, 0) };
        atomic { if :: state[0] == done -> key_taken[0] = true :: else fi }
    :: atomic { has(t, 1) -> settle(t, 1) };
        atomic { if :: state[1] == done -> key_taken[1] = true :: else fi }
#else
    :: atomic { has(t, 0) -> settle(t, 0) }
    :: atomic { has(t, 1) -> settle(t, 1) }
#if MESSAGES > 2
    :: atomic { has(t, 2) -> settle(t, 2) }
#endif
#endif
    /* Transition give back: by nack or release, it comes back at once. */
    :: atomic { has(t, 0) && faults > 0 -> faults--; give_back(t, 0) }
    :: atomic { has(t, 1) && faults > 0 -> faults--; give_back(t, 1) }
    /* Transition extend: a lease that has ended, but was not taken away, is valid again. */
    :: atomic { has(t, 0) && lease_over[0] && mine(t, 0) -> extend(t, 0) }
    :: atomic { has(t, 1) && lease_over[1] && mine(t, 1) -> extend(t, 1) }
    /* It passes its token on, and settles the message no more itself. */
    :: atomic { has(t, 0) && !token_out -> pass_on(t, 0) }
    od
}

/* Another process settles by the token: once, or a second time, or never. */
proctype callback() {
end:
    do
    :: atomic { token_out ->
            if
            :: token_fence(token_message, token_id, token_round) -> finish(token_message, CALLBACK)
            :: else
            fi;
            if
            :: true
            :: break
            fi
        }
    :: token_out -> break
    od
}

/* The heartbeat of a service, and what it gives back after lost answers. */
proctype heartbeat(byte c) {
    byte m;
end:
    do
    /* Transition heartbeat: a late one that comes first counts. */
    :: atomic { !stopped[c] && seen[me[c]] == overdue ->
            assert(!robbed[me[c]]);
            seen[me[c]] = alive
        }
    /* Transition register: it learns that it was declared dead. */
    :: atomic { !stopped[c] && (seen[me[c]] == dead || seen[me[c]] == gone) -> register(c) }
#ifndef NO_RECALL
    /* Transition recall: what the lost claim stamped goes back; it looks for as long as it lives. */
#define is_lost(m) (state[m] == live && consumer_id[m] == lost_id[c] && \
                    consumer_round[m] == lost_round[c])
    :: atomic { !stopped[c] && unanswered[c] && any(is_lost) ->
            for (m : 0 .. MESSAGES - 1) {
                if
                :: is_lost(m) -> forget(m)
                :: else
                fi
            };
            m = 0;
            unanswered[c] = false
        }
#endif
    /* Claims of a former identity are the reaper's. */
    :: atomic { unanswered[c] && lost_id[c] != me[c] -> unanswered[c] = false }
    od
}

#define is_over(m) (state[m] == live && consumer_id[m] != NOBODY && lease_over[m])
#define dies(i) (seen[i] == dead || seen[i] == gone)
#ifdef ONLY_AT_DEATH
#define is_orphan(m) (state[m] == live && consumer_id[m] != NOBODY && seen[consumer_id[m]] == dead)
#elif defined(RESTORE_OVERDUE)
#define is_orphan(m) (state[m] == live && consumer_id[m] != NOBODY && \
                      (seen[consumer_id[m]] == overdue || dies(consumer_id[m])))
#else
#define is_orphan(m) (state[m] == live && consumer_id[m] != NOBODY && dies(consumer_id[m]))
#endif

proctype reaper() {
    byte m, i, r;
end:
    do
    /* Transition restore expired: found and locked in one transaction. */
#ifdef RESTORE_BLIND
    :: atomic { any(is_over) -> m = (is_over(0) -> 0 : 1); i = consumer_id[m]; r = consumer_round[m] };
        atomic {
            if
            :: fence(m, i, r) -> assert(lease_over[m]); forget(m)
            :: else
            fi;
            m = 0; i = 0; r = 0
        }
#else
    :: atomic { any(is_over) ->
            for (m : 0 .. MESSAGES - 1) {
                if
                :: is_over(m) -> forget(m)
                :: else
                fi
            };
            m = 0
        }
#endif
    /* Transition restore orphans: whatever bears an id that no living consumer has. */
    :: atomic { any(is_orphan) ->
            for (m : 0 .. MESSAGES - 1) {
                if
                :: is_orphan(m) -> robbed[consumer_id[m]] = true; forget(m)
                :: else
                fi
            };
            m = 0
        }
    /* Transition declare dead: under the lock of the row, if the heartbeat is still overdue. */
#ifdef DEATH_BLIND
    :: atomic { i < identities && seen[i] == overdue -> r = 1 };
        atomic { assert(seen[i] == overdue); seen[i] = dead; i = 0; r = 0 }
    :: atomic { i + 1 < identities -> i++ }
#else
    :: atomic { seen[0] == overdue -> seen[0] = dead }
    :: atomic { seen[1] == overdue -> seen[1] = dead }
    :: atomic { seen[2] == overdue -> seen[2] = dead }
#if FAULTS > 1
    :: atomic { seen[3] == overdue -> seen[3] = dead }
#endif
#endif
    /* Transition remove: the row of who is dead goes, whatever still bears its id. */
    :: atomic { seen[0] == dead -> seen[0] = gone }
    :: atomic { seen[1] == dead -> seen[1] = gone }
    :: atomic { seen[2] == dead -> seen[2] = gone }
#if FAULTS > 1
    :: atomic { seen[3] == dead -> seen[3] = gone }
#endif
    od
}

/* Time, and what breaks. */
proctype world() {
    byte c, m;
end:
    do
    :: atomic { seen[me[0]] == alive && stopped[0] -> seen[me[0]] = overdue }
    :: atomic { seen[0] == alive && me[0] != 0 && me[1] != 0 -> seen[0] = overdue }
    :: atomic { identities > 2 && seen[2] == alive && me[0] != 2 && me[1] != 2 -> seen[2] = overdue }
    :: atomic { faults > 0 && seen[me[0]] == alive -> faults--; seen[me[0]] = overdue }
    :: atomic { faults > 0 && seen[me[1]] == alive -> faults--; seen[me[1]] = overdue }
#define ends_unrenewed(m) (state[m] == live && by_token[m] && !lease_over[m])
    :: atomic { any(ends_unrenewed) ->
            m = (ends_unrenewed(0) -> 0 : (ends_unrenewed(1) -> 1 : 2));
            lease_over[m] = true; m = 0
        }
#define may_end(m) (state[m] == live && consumer_id[m] != NOBODY && !lease_over[m])
    :: atomic { faults > 0 && may_end(0) -> faults--; lease_over[0] = true }
    :: atomic { faults > 0 && may_end(1) -> faults--; lease_over[1] = true }
    /* kill -9 of consumer 0, which starts again or not. */
    :: atomic { faults > 0 && !stopped[0] ->
            faults--;
            hand[0] = 0; hand[1] = 0; unanswered[0] = false;
            if
            :: true
            :: !late ->                     /* with a claim on its way */
                rounds[me[0]]++;
                late = true; late_id = me[0]; late_round = rounds[me[0]]
            fi;
            if
            :: register(0)
            :: stopped[0] = true
            fi
        }
    /* The server carries out a claim whose client is gone. */
    :: atomic { late -> late = false; stamp(late_id, late_round, NOBODY); taken = 0 }
    od
}

init {
    atomic {
        register(0);
        register(1);
        run publisher();
        run thread(0, 0);
        run thread(1, 0);
        run thread(2, 1);
        run callback();
        run heartbeat(0);
        run heartbeat(1);
        run reaper();
        run world()
    }
}

#if MESSAGES == 2
ltl handled { <> (effects[0] > 0 && effects[1] > 0) }
#else
ltl handled { <> (effects[0] > 0 && effects[1] > 0 && effects[2] > 0) }
#endif
