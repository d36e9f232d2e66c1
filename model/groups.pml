/*
 * Messages of one group run one after the other, as published: group_limit=1, in order.
 *
 * What its group blocks is parked, out of the claim index. One message that is not parked carries
 * the mark that others wait behind it; who ends that one wakes the next. A publisher may commit late,
 * so that an earlier message appears when a later one is in hand, or parked.
 *
 * With AT_ONCE a claim is one statement of PostgreSQL: its snapshot is older than its locks. Else it
 * locks the message that it met first, then the row of the group, and looks after that.
 * With HAND_EDITS somebody deletes a message by SQL, and the reaper repairs the group.
 */
#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef CONSUMERS
#define CONSUMERS 2
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
#define NONE 100

bool visible[MESSAGES];             /* committed, and not ended */
bool claimed[MESSAGES];
bool parked[MESSAGES];
bool blocks[MESSAGES];
bool later[MESSAGES];               /* due at a later time, after a nack */
bool locked[MESSAGES];
byte seq;                           /* of the group's row */
bool ended[MESSAGES];

byte faults = FAULTS;
byte in_hand;
byte first;
byte y;

#define waits(m) (visible[m] && !claimed[m])
#define in_index(m) (waits(m) && !parked[m] && !later[m])
#define met_any (in_index(0) || in_index(1) || in_index(2))
#define free_to_meet(m) (in_index(m) && !locked[m])

proctype publisher(byte m) {
    visible[m] = true
}

/* The first message of the group that nobody holds, also if it is parked, or committed late. */
inline find_head() {
    first = (waits(0) -> 0 : (waits(1) -> 1 : (waits(2) -> 2 : NONE)))
}

inline start(m) {
    in_hand++;
    assert(in_hand <= 1);
    claimed[m] = true;
    if
    :: parked[m] || blocks[m] -> blocks[m] = true
    :: else
    fi;
    parked[m] = false;
    seq++
}

/* Nothing that is there and published before may be passed over. */
inline check_order(m) {
    assert(!(m > 0 && visible[0]));
    assert(!(m > 1 && visible[1]))
}

/* Transition wake: the next parked message is back in the claim index, and carries the mark. */
inline wake() {
    y = (parked[0] && waits(0) -> 0 : (parked[1] && waits(1) -> 1 :
        (parked[2] && waits(2) -> 2 : NONE)));
    if
    :: y != NONE -> parked[y] = false; blocks[y] = true
    :: else
    fi;
    y = 0
}

inline end(m) {
    visible[m] = false; claimed[m] = false; ended[m] = true; in_hand--;
    if
#ifdef NO_WAKE
    :: false
#else
    :: blocks[m] -> blocks[m] = false; wake()
#endif
    :: else -> blocks[m] = false
    fi
}

inline park_behind(carrier) {
    y = 0;
    taken = false;
    do
    :: y < MESSAGES ->
        if
        :: y != carrier && free_to_meet(y) -> parked[y] = true; taken = true
        :: else
        fi;
        y++
    :: else -> break
    od;
    y = 0;
    if
    :: taken && visible[carrier] -> blocks[carrier] = true
    :: else
    fi;
    taken = false
}

inline find_carrier(met) {
    find_head();
    carrier = (claimed[0] && visible[0] -> 0 : (claimed[1] && visible[1] -> 1 :
              (claimed[2] && visible[2] -> 2 :
              (first != NONE && !parked[first] && !locked[first] -> first : met))));
    first = 0
}

proctype consumer() {
    byte met, mine, carrier, known;
    bool taken, mark;
fin:
    do
    :: atomic { met_any && (free_to_meet(0) || free_to_meet(1) || free_to_meet(2)) ->
            /* Transition claim: it meets a message along the claim index, and locks it. */
            if
            :: free_to_meet(0) -> met = 0
            :: free_to_meet(1) -> met = 1
            :: free_to_meet(2) -> met = 2
            fi;
            locked[met] = true;
            mine = NONE
#ifdef AT_ONCE
            ; find_head(); known = seq;
            if
            :: first != NONE && in_hand == 0 && !later[first] && (first == met || !locked[first]) ->
                check_order(first);
                mine = first; locked[mine] = true
            :: else
            fi;
            first = 0
#endif
        };
        atomic {
            /* It locks the row of the group. */
#ifdef AT_ONCE
            if
#ifdef NO_SEQ
            :: mine != NONE -> start(mine)
#else
            :: mine != NONE && seq == known -> start(mine)
            :: mine != NONE && seq != known -> locked[mine] = false; mine = NONE
#endif
            :: mine == NONE
            fi;
            known = 0;
#else
#ifdef FOLLOWER_FIRST
            first = met;
#else
            find_head();
#endif
            if
#ifdef NOT_COUNTED
            :: first != NONE && !later[first] && (first == met || !locked[first]) ->
#elif defined(RETRY_LETS_PASS)
            :: first != NONE && in_hand == 0 && (first == met || !locked[first]) ->
                first = (later[first] -> met : first);
#else
            :: first != NONE && in_hand == 0 && !later[first] && (first == met || !locked[first]) ->
#endif
                check_order(first);
                mine = first; start(mine)
            :: else
            fi;
            first = 0;
#endif
            locked[met] = false;
            if
            :: mine != NONE -> locked[mine] = false
            :: else
            fi
        };
        if
        :: mine == NONE ->
            /* Transition park: it locks what blocks the group, and moves the others aside. */
#ifdef PARK_UNLOCKED
            atomic { if :: in_index(met) -> find_carrier(met) :: else -> carrier = NONE fi };
            atomic {
                if
                :: carrier != NONE -> park_behind(carrier)
                :: else
                fi;
                carrier = 0
            }
#else
            atomic {
                if
                :: in_index(met) && !locked[met] -> find_carrier(met); park_behind(carrier)
                :: else
                fi;
                carrier = 0
            }
#endif
        :: else ->
            if
            /* Transition end: by ack or reject, it is locked, then it ends, and wakes who waits. */
#ifdef MARK_READ_BEFORE
            :: true ->
                mark = blocks[mine];
                atomic { blocks[mine] = mark; end(mine); mark = false }
#else
            :: atomic { true -> end(mine) }
#endif
            /* Transition nack: it is due later, and holds up those behind it. */
            :: atomic { faults > 0 ->
                    faults--; claimed[mine] = false; later[mine] = true; in_hand--;
                    if
                    :: blocks[mine] ->
                        y = (parked[0] && waits(0) -> 0 : (parked[1] && waits(1) -> 1 : NONE));
                        if
                        :: y < mine -> parked[y] = false; blocks[y] = true
                        :: else
                        fi;
                        y = 0
                    :: else
                    fi
                }
            /* Transition give back: by release, or after a death; it is the first of its group again. */
            :: atomic { faults > 0 -> faults--; claimed[mine] = false; in_hand-- }
            fi
        fi;
        atomic { met = 0; mine = 0 }
    od
}

proctype time() {
fin:
    do
    :: atomic { later[0] -> later[0] = false }
    :: atomic { later[1] -> later[1] = false }
    :: atomic { later[2] -> later[2] = false }
    od
}

#ifdef HAND_EDITS
proctype somebody() {
    if
    :: atomic { waits(0) && !locked[0] -> visible[0] = false; ended[0] = true;
            parked[0] = false; blocks[0] = false }
    :: atomic { waits(1) && !locked[1] -> visible[1] = false; ended[1] = true;
            parked[1] = false; blocks[1] = false }
    :: ended[0] && ended[1]
    fi
}

#define carries(m) (visible[m] && !parked[m] && blocks[m])
/* Transition repair: parked messages without a carrier are woken. */
proctype reaper() {
fin:
    do
#ifndef NO_REPAIR
    :: atomic { ((parked[0] && waits(0)) || (parked[1] && waits(1)) || (parked[2] && waits(2))) &&
            !carries(0) && !carries(1) && !carries(2) -> wake() }
#else
    :: false
#endif
    od
}
#endif

init {
    byte i;
    atomic {
        for (i : 0 .. MESSAGES - 1) { run publisher(i) };
        for (i : 1 .. CONSUMERS) { run consumer() };
        run time()
#ifdef HAND_EDITS
        ; run somebody(); run reaper()
#endif
    }
}

ltl settled { <> (ended[0] && ended[1] && ended[2]) }
