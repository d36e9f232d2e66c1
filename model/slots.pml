/*
 * The limit of a queue: at most LIMIT messages in hand. Each slot has the stamp of the claim that
 * uses it, and is free if no claimed message has that stamp. So nothing has to be given back.
 *
 * A claim looks for a free slot without a lock, locks it, looks again, claims, and writes its stamp
 * there, in one transaction. Consumers die with messages in hand.
 */
#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef CONSUMERS
#define CONSUMERS 3
#endif
#ifndef LIMIT
#define LIMIT 1
#endif
#define NOBODY 255

bool live[MESSAGES] = true;
byte stamp_of[MESSAGES] = NOBODY;
byte slot_message[LIMIT] = NOBODY;
byte slot_stamp[LIMIT] = NOBODY;
bool locked[LIMIT];
bool flag[LIMIT];
byte next_stamp;
byte in_hand;
byte deaths = 2;
bool orphan[MESSAGES];

#ifdef STORED_FLAG
#define used(s) (flag[s])
#else
#define used(s) (slot_message[s] != NOBODY && live[slot_message[s]] && \
                 stamp_of[slot_message[s]] == slot_stamp[s])
#endif
#define is_free(m) (live[m] && stamp_of[m] == NOBODY)

proctype consumer() {
    byte s, mine, m, stamp;
end:
    do
    :: is_free(0) || is_free(1) || is_free(2) ->
        mine = NOBODY;
        /* Transition claim: the look for a slot, without a lock. */
        atomic {
            for (s : 0 .. LIMIT - 1) {
                if
                :: !used(s) && mine == NOBODY -> mine = s
                :: else
                fi
            };
            s = 0
        };
        if
        :: mine == NOBODY
        :: else ->
            /* The lock, which skips what others have. */
            if
            :: atomic { !locked[mine] -> locked[mine] = true };
                atomic {
#ifndef NO_SECOND_LOOK
                    if
                    :: used(mine)
                    :: else ->
#endif
                        m = (is_free(0) -> 0 : (is_free(1) -> 1 : (is_free(2) -> 2 : NOBODY)));
                        if
                        :: m != NOBODY ->
                            stamp = next_stamp; next_stamp++;
                            stamp_of[m] = stamp; in_hand++;
                            assert(in_hand <= LIMIT);
                            slot_message[mine] = m; slot_stamp[mine] = stamp; flag[mine] = true
                        :: else
                        fi
#ifndef NO_SECOND_LOOK
                    fi
#endif
                    ;
                    locked[mine] = false
                };
            :: else -> m = NOBODY
            fi;
            if
            :: m != NOBODY && stamp_of[m] == stamp && live[m] ->
                if
                /* Transition ack: it frees the slot. */
                :: atomic { stamp_of[m] == stamp ->
                        live[m] = false; stamp_of[m] = NOBODY; in_hand--; flag[mine] = false }
                /* It dies, and another one takes its place. */
                :: atomic { deaths > 0 && stamp_of[m] == stamp -> deaths--; orphan[m] = true }
                fi
            :: else
            fi
        fi;
        atomic { m = 0; stamp = 0 }
    od
}

/* Transition restore orphans: it knows nothing of slots. */
proctype reaper() {
end:
    do
    :: atomic { orphan[0] -> orphan[0] = false; stamp_of[0] = NOBODY; in_hand-- }
    :: atomic { orphan[1] -> orphan[1] = false; stamp_of[1] = NOBODY; in_hand-- }
    :: atomic { orphan[2] -> orphan[2] = false; stamp_of[2] = NOBODY; in_hand-- }
    od
}

init {
    byte c;
    atomic {
        for (c : 1 .. CONSUMERS) { run consumer() };
        run reaper()
    }
}

ltl all_run { <> (!live[0] && !live[1] && !live[2]) }
