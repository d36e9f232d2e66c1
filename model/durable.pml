/*
 * Durable consumers: a streaming query reads its messages in rounds, and asks for the same round
 * again after a crash. What it computed is written by the number of the round, once.
 *
 * The first driver may stop at any step and go on at any later one, while a second one has taken
 * over. An operator may release the consumer: its messages go back, and a new query with a new sink
 * begins with round 1 again.
 *
 * Rounds are opened by a driver, claimed once by whoever reads them first (each driver has one
 * reader), written to the sink by the driver, and acknowledged after that.
 */
#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef DRIVERS
#define DRIVERS 2
#endif
#define ROUNDS 2                    /* how many rounds are opened */
#define UNCLAIMED 100

bool live[MESSAGES];
byte of_round[MESSAGES];            /* the stamp; 0: nobody has claimed it */
byte epoch;
byte opened;                        /* claimed_round of the consumer's row */
byte acked;
byte claimed_count[ROUNDS + 1] = UNCLAIMED;

/* The sink: what it wrote for each round. It takes no round twice. */
byte sink[ROUNDS + 1];
bool in_sink[ROUNDS + 1];
byte effects[MESSAGES];             /* by the query that is registered now */
byte registration;
byte taken;

#ifdef NO_EPOCH
#define may(mine) (true)
#else
#define may(mine) (epoch == mine)
#endif

proctype publisher() {
    byte m;
    for (m : 0 .. MESSAGES - 1) { live[m] = true }
}

/* Transition claim round: once. */
inline claim_round(n) {
#ifndef CLAIMED_AGAIN
    if
    :: claimed_count[n] == UNCLAIMED ->
#endif
        claimed_count[n] = 0;
        for (m : 0 .. MESSAGES - 1) {
            if
            :: live[m] && of_round[m] == 0 && claimed_count[n] < 2 ->
                of_round[m] = n; claimed_count[n]++
            :: else
            fi
        }
#ifndef CLAIMED_AGAIN
    :: else
    fi
#endif
}

/* Transition read round: what bears its stamp. */
inline read_round(n) {
    taken = 0;
    for (m : 0 .. MESSAGES - 1) {
        if
        :: live[m] && of_round[m] == n -> taken = taken | (1 << m)
        :: else
        fi
    }
}

/* Transition ack rounds: what was written. */
inline ack_round(n) {
    for (m : 0 .. MESSAGES - 1) {
        if
        :: live[m] && of_round[m] == n ->
            /* No message is lost: what is removed was written. */
            assert(effects[m] == 1);
            live[m] = false
        :: else
        fi
    };
    if
    :: acked < n -> acked = n
    :: else
    fi
}

inline write_to_sink(n, batch) {
    if
    :: query != registration            /* the sink of a query that nobody needs any more */
    :: query == registration && !in_sink[n] ->
        in_sink[n] = true; sink[n] = batch;
        for (m : 0 .. MESSAGES - 1) {
            if
            :: batch & (1 << m) -> effects[m]++; assert(effects[m] == 1)
            :: else
            fi
        }
    /* A round that is read again is the same one. */
    :: query == registration && in_sink[n] -> assert(batch == sink[n])
    fi
}

proctype driver(byte number) {
    byte mine, query, n, batch, m;
    /* Transition take over: by a higher epoch. */
    atomic { epoch++; mine = epoch; query = registration; n = acked + 1 };
end:
    do
    :: n <= ROUNDS ->
        /* Transition open round: after the last one. */
        atomic {
            if
            :: may(mine) && opened < n && acked == n - 1 -> opened = n
            :: may(mine) && opened >= n
            :: !may(mine) -> goto over
            fi
        };
        atomic { if :: may(mine) -> claim_round(n) :: else -> goto over fi; m = 0 };
        atomic {
            if
            :: may(mine) && acked < n -> read_round(n); batch = taken; taken = 0
            :: else -> goto over
            fi;
            m = 0
        };
#ifdef ACK_BEFORE_WRITE
        atomic { if :: may(mine) -> ack_round(n) :: else -> goto over fi; m = 0 };
#endif
#ifdef NO_WRITE
        goto over;
#endif
        atomic { write_to_sink(n, batch); batch = 0; m = 0 };
#ifndef ACK_BEFORE_WRITE
        atomic { if :: may(mine) -> ack_round(n) :: else -> goto over fi; m = 0 };
#endif
        n++
    :: n > ROUNDS -> break
    od;
over:
    skip
}

/* Transition release rounds: what was claimed goes back. */
proctype operator() {
    byte m;
    atomic {
        epoch++; registration++;
        opened = 0; acked = 0;
        for (m : 0 .. MESSAGES - 1) {
            of_round[m] = 0;
            effects[m] = (live[m] -> 0 : effects[m])
        };
        for (m : 1 .. ROUNDS) { claimed_count[m] = UNCLAIMED; in_sink[m] = false; sink[m] = 0 };
        m = 0;
        run driver(DRIVERS)
    }
}

#define pending(m) (of_round[m] > 0 && effects[m] == 0)
bool ended;

/* What was claimed for a round is written, when nobody goes on. */
proctype at_end() {
    timeout -> assert(!pending(0) && !pending(1) && !pending(2));
    ended = true
}

init {
    byte d;
    atomic {
        run publisher();
        for (d : 0 .. DRIVERS - 1) { run driver(d) };
        run operator();
        run at_end()
    }
}

/* The drivers come to that end. */
ltl written { <> ended }
