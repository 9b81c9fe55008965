package rekey

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

const (
	step = 100 * time.Millisecond
	// WireGuard's own times, and those of the agent.
	rekeyAfter, retryAfter, rejectAfter = 120 * time.Second, 5 * time.Second, 180 * time.Second
	downAfter, missingAfter             = 2500 * time.Millisecond, 2 * time.Second
	// deafFor bounds how long two gateways that could reach each other do not, restarts included.
	deafFor = 25 * time.Second
	// quiet is how long nothing is amiss in the end: longer than a cut, and than WireGuard takes for two sessions.
	quiet = 9 * time.Minute
)

// gateway is a machine, and what is around it: WireGuard, an agent that looks and redials.
type gateway struct {
	*Machine
	calls bool
	key   Key
	// handshake was the last one, answered the last answer to a probe. Both are zero for never.
	handshake, answered, asked, looked time.Time
	received                           bool
	redialed                           time.Time
	another                            bool
	// left is since when it does not run, away until when, and dead until when its WireGuard does not, either.
	left, away, dead time.Time
	// last is what it said last, inbox what is on the way to it.
	last  []byte
	inbox []delivery
}

type delivery struct {
	at   time.Time
	what []byte
}

// play is two gateways and what is between them.
type play struct {
	t    *testing.T
	seed uint64
	age  time.Duration
	now  time.Time
	// client and server.
	sides [2]*gateway
	// session is when the present one was made, the zero time if there is none that both have, and of the key that it is of. tried is
	// the last attempt to replace it.
	session, tried time.Time
	of             Key
	cut            time.Time
	// stuck says that the client's WireGuard sends nothing before there is another session.
	stuck bool
	// connected is when the channel was, zero if it is not. deaf is since when packets could pass and do not.
	connected, deaf time.Time
	// busy is when something last went on.
	busy  time.Time
	worst time.Duration
	// lossy is the part of handshakes that fail, anytime says that faults are made at any time.
	lossy   float64
	anytime bool
	// messages counts all that were sent. hook is called before one is delivered: false loses it, with the connection.
	messages int
	hook     func(n int) bool
	random   *rand.Rand
	seen     map[Key]bool
	trace    []string
}

func newPlay(t *testing.T, age time.Duration, seed uint64) *play {
	p := &play{t: t, seed: seed, age: age, now: time.Unix(1e9, 0), random: rand.New(rand.NewPCG(seed, 1)), hook: func(int) bool { return true }, seen: map[Key]bool{}}
	for i := range p.sides {
		p.sides[i] = &gateway{calls: i == 0}
		p.start(i)
	}
	for p.deaf = p.now; !p.works(); {
		p.turn()
	}
	p.worst = 0
	return p
}

var testTunnel = Tunnel{Base: Key{1}, Plane: 1, Client: [32]byte{2}, Server: [32]byte{3}}

func (p *play) note(format string, args ...any) {
	p.trace = append(p.trace, p.now.Format("04:05.0 ")+fmt.Sprintf(format, args...))
}

// start starts a gateway: it knows the base key, and what it says does not depend on what was before.
func (p *play) start(i int) {
	s := p.sides[i]
	s.Machine = New(testTunnel, s.calls, p.now)
	s.SetAge(p.age)
	s.key, s.last, s.inbox, s.redialed, s.received = s.Key(), nil, nil, time.Time{}, false
	s.answered, s.asked, s.looked = time.Time{}, time.Time{}, p.now
	s.Applied(s.key, s.handshake)
}

// restart ends a gateway, which comes back later. With WireGuard in the kernel the session stays.
func (p *play) restart(i int, away time.Duration, kernel bool) {
	p.note("side %d starts anew after %s, kernel %t", i, away, kernel)
	if p.runs(i) {
		p.sides[i].left = p.now
	}
	p.sides[i].away = p.now.Add(away)
	p.disconnect()
	key := p.sides[i].key
	if !kernel {
		p.sides[i].dead = p.sides[i].away
		p.session, p.sides[i].handshake = time.Time{}, time.Time{}
	}
	p.start(i)
	if kernel {
		p.sides[i].key = key // until the agent is back
	}
}

func (p *play) disconnect() {
	p.connected = time.Time{}
	for _, s := range p.sides {
		s.inbox = nil
	}
}

func (p *play) runs(i int) bool { return !p.now.Before(p.sides[i].away) }

// apart says that the gateways may know different keys, and one of them is not there to change that: it left before they could
// agree again, which takes any time where much is lost.
func (p *play) apart() bool {
	for i, s := range p.sides {
		if other := p.sides[1-i]; !p.runs(i) && (p.anytime || !p.runs(1-i) || other.away.After(s.left.Add(-time.Minute))) {
			return true
		}
	}
	return false
}

func (p *play) reachable() bool {
	return !p.now.Before(p.sides[0].dead) && !p.now.Before(p.sides[1].dead) && !p.now.Before(p.cut)
}

func (p *play) works() bool {
	return p.reachable() && !p.session.IsZero() && !p.stuck && p.now.Sub(p.session) < rejectAfter
}

// shake is a handshake that a side begins.
func (p *play) shake() {
	p.tried, p.busy = p.now, p.now
	if !p.reachable() || p.random.Float64() < p.lossy {
		return
	}
	p.sides[1].received = true // the initiation
	if p.sides[0].key != p.sides[1].key || p.random.Float64() < p.lossy {
		return
	}
	p.session, p.of, p.stuck = p.now, p.sides[0].key, false
	for _, s := range p.sides {
		s.handshake = p.now
	}
}

// look is what an agent does now and then.
func (p *play) look(i int) {
	s := p.sides[i]
	silent := p.now.Sub(s.answered)
	answered := !s.answered.IsZero() && silent < downAfter
	for len(s.inbox) > 0 && !s.inbox[0].at.After(p.now) && p.works() { // otherwise TCP sends it again later
		if err := s.Hear(s.inbox[0].what, p.now); err != nil {
			p.note("side %d: %v", i, err)
		}
		s.inbox = s.inbox[1:]
	}
	s.Look(p.now, Seen{
		Answered: s.answered.After(s.looked), Asked: s.asked.After(s.looked), Missing: silent > missingAfter, Received: s.received, Handshake: s.handshake,
	})
	s.received, s.looked = false, p.now
	p.apply(s)
	if s.Renew(p.now) && !p.session.IsZero() {
		p.stuck = true
		p.shake()
	}
	p.say(i)
	pause := time.Second
	if s.another {
		pause = 300 * time.Millisecond
	}
	if s.calls && !answered && p.now.Sub(s.redialed) >= pause {
		s.redialed = p.now
		s.another = s.Redial()
		p.session, s.handshake = time.Time{}, time.Time{}
		p.stuck = false
		p.disconnect()
		p.apply(s)
		s.Applied(s.key, s.handshake)
		p.shake()
	}
}

func (p *play) apply(s *gateway) {
	if key := s.Key(); key != s.key {
		s.key = key
		s.Applied(s.key, s.handshake)
		if !p.seen[key] {
			p.seen[key] = true
			p.note("key %x", key[:4])
		}
	}
}

func (p *play) say(i int) {
	if b := p.sides[i].Say(); b != nil {
		p.note("side %d says %d", i, b[0])
		p.sides[i].last = b
		p.send(i)
	}
}

// send delivers what a side has said last.
func (p *play) send(i int) {
	b := p.sides[i].last
	if p.connected.IsZero() || b == nil {
		return
	}
	p.messages++
	p.busy = p.now
	if !p.hook(p.messages) {
		p.note("message %d is lost", p.messages)
		p.disconnect()
		return
	}
	to := p.sides[1-i]
	to.inbox = append(to.inbox, delivery{p.now.Add(step / 2), b})
}

// turn is a step of time.
func (p *play) turn() {
	d := step
	if p.works() && p.now.Sub(p.busy) > 5*time.Second {
		d = time.Second // nothing is going on
	}
	p.now = p.now.Add(d)
	works := p.works()
	if works {
		for i, s := range p.sides {
			if s.received = true; p.runs(1 - i) {
				s.answered, s.asked = p.now, p.now
			}
		}
		if age := p.now.Sub(p.session); age >= rekeyAfter && p.now.Sub(p.tried) >= retryAfter {
			p.shake()
		}
	} else if p.reachable() && p.now.Sub(p.tried) >= retryAfter {
		p.shake() // there are packets to be sent
	}
	switch {
	case !works && p.now.Sub(p.sides[0].answered) > 8*time.Second:
		p.disconnect()
	case works && p.connected.IsZero() && p.runs(0) && p.runs(1) && p.random.Float64() < 0.3:
		p.connected = p.now
		p.send(0)
		p.send(1)
	case works && p.random.Float64() < float64(d)/float64(30*time.Second):
		p.send(p.random.IntN(2)) // again, though nothing has changed
	}
	for i := range p.sides {
		if p.runs(i) {
			p.look(i)
		}
	}
	p.honest()
	if p.works() || !p.reachable() || p.apart() {
		p.deaf = p.now
	}
	p.worst = max(p.worst, p.now.Sub(p.deaf))
}

// honest checks that nobody takes a session for one of a fresh key that is not.
func (p *play) honest() {
	for i, s := range p.sides {
		agreed := p.works() && p.runs(i) && !s.State(p.now).Agreed.IsZero()
		if agreed && (p.of == testTunnel.Base || s.calls && p.of != s.current && p.of != s.right()) {
			p.fail(fmt.Sprintf("side %d says that it has a fresh key", i))
		}
	}
}

func (p *play) fail(problem string) {
	p.t.Helper()
	for _, line := range p.trace {
		p.t.Log(line)
	}
	p.t.Fatalf("seed %d: %s", p.seed, problem)
}

func (p *play) run(d time.Duration) {
	for end := p.now.Add(d); p.now.Before(end); {
		p.turn()
	}
}

// check looks whether all is well after some quiet.
func (p *play) check(what string) {
	p.t.Helper()
	p.lossy, p.hook = 0, func(int) bool { return true }
	p.run(quiet)
	client, server := p.sides[0], p.sides[1]
	problem := ""
	switch {
	case !p.works():
		problem = "no packets pass"
	case client.key != server.key:
		problem = "WireGuard has different keys"
	case p.worst > deafFor:
		problem = fmt.Sprintf("no packets passed for %s", p.worst)
	}
	for i, s := range p.sides {
		if state := s.State(p.now); state.Agreed.IsZero() || state.Overdue {
			problem += fmt.Sprintf(" side %d: %+v", i, state)
		}
		if p.age == time.Hour && (s.next != nil || s.tries != theRight) {
			problem += fmt.Sprintf(" side %d knows a key that is not in use", i)
		}
	}
	if problem != "" {
		p.fail(what + ": " + problem)
	}
}

// Without faults the keys are changed again and again, and packets always pass.
func TestRoutine(t *testing.T) {
	p := newPlay(t, 10*time.Minute, 1)
	session := p.session
	p.run(3 * time.Second)
	if p.sides[0].key == testTunnel.Base || !p.session.After(session) {
		t.Error("the first session was not replaced at once")
	}
	first := p.sides[0].State(p.now)
	if s := p.sides[1].State(p.now); first.Agreed.IsZero() || s.Agreed.IsZero() || s.Overdue {
		t.Fatalf("after 3 s: %+v, %+v", first, s)
	}
	for range 12 * 60 {
		p.run(time.Second * 10)
		for i, s := range p.sides {
			if state := s.State(p.now); state.Agreed.IsZero() || state.Overdue {
				t.Fatalf("side %d: %+v", i, state)
			}
		}
	}
	if n := len(p.seen); p.worst > 0 || n < 12 || n > 18 {
		t.Errorf("%d keys in 2 h; no packets for %s", n, p.worst)
	}
	p.check("routine")
}

// Where both go on, the key stays when packets did not pass for some time.
func TestOutages(t *testing.T) {
	p := newPlay(t, time.Hour, 1)
	p.run(3 * time.Second)
	key := p.sides[0].key
	for i := range 40 {
		p.cut = p.now.Add(time.Duration(i) * 300 * time.Millisecond)
		p.run(30 * time.Second)
		if !p.works() || p.sides[0].key != key || p.sides[1].key != key {
			p.fail(fmt.Sprintf("after outage %d the key is another one", i))
		}
	}
}

// fault is something that goes wrong when a message is about to be delivered.
type fault struct {
	name string
	do   func(p *play) (delivered bool)
	// lossless says that it costs no packet.
	lossless bool
}

func faults() (out []fault) {
	add := func(name string, lossless bool, do func(p *play) bool) {
		out = append(out, fault{name, do, lossless})
	}
	add("lost", true, func(*play) bool { return false })
	add("cut for 4 s", false, func(p *play) bool { p.cut = p.now.Add(4 * time.Second); return true })
	add("cut for 4 min", false, func(p *play) bool { p.cut = p.now.Add(4 * time.Minute); return false })
	for i, side := range []string{"client", "server"} {
		add(side+" starts anew", false, func(p *play) bool { p.restart(i, 2*time.Second, false); return false })
		add(side+" starts anew later", false, func(p *play) bool { p.restart(i, 20*time.Second, false); return false })
		add(side+" starts anew, the kernel goes on", true, func(p *play) bool { p.restart(i, time.Second, true); return false })
		// The server's agent has to answer, or the client starts sessions anew.
		add(side+" starts anew much later, the kernel goes on", i == 0, func(p *play) bool { p.restart(i, 5*time.Minute, true); return false })
	}
	return out
}

// Whatever goes wrong at whichever message, and at another one after it, the gateways are soon of one
// mind, and know no key that is not in use.
func TestFaults(t *testing.T) {
	const messages = 14 // of the first agreement, and of the second one
	all := faults()
	worst, plays := time.Duration(0), 0
	try := func(n1, n2 int, f1, f2 fault) {
		p := newPlay(t, 5*time.Minute, uint64(n1*100+n2))
		p.hook = func(n int) bool {
			switch n {
			case n1:
				p.note("fault: %s", f1.name)
				return f1.do(p)
			case n2:
				p.note("fault: %s", f2.name)
				return f2.do(p)
			}
			return true
		}
		p.run(8 * time.Minute)
		for _, s := range p.sides {
			s.SetAge(time.Hour)
		}
		p.age = time.Hour
		p.check(fmt.Sprintf("%s at message %d, %s at message %d", f1.name, n1, f2.name, n2))
		if f1.lossless && f2.lossless && p.worst > 0 {
			t.Errorf("%s at message %d, %s at message %d: no packets passed for %s", f1.name, n1, f2.name, n2, p.worst)
		}
		worst, plays = max(worst, p.worst), plays+1
	}
	for n := 1; n <= messages; n++ {
		for _, f := range all {
			try(n, 0, f, f)
		}
	}
	// The server has taken the next key, and the client's agent is away before it hears of that.
	away := all[slices.IndexFunc(all, func(f fault) bool { return f.name == "client starts anew much later, the kernel goes on" })]
	try(13, 17, all[0], away)
	try(14, 18, away, away)
	const apart = 4 // messages between two faults
	random := 50
	if kit.Full() { // all of them
		random = 0
		for n := 1; n <= messages; n++ {
			for k := range apart * len(all) * len(all) {
				try(n, n+1+k%apart, all[k/apart%len(all)], all[k/apart/len(all)])
			}
		}
	}
	for range random {
		n := 1 + rand.IntN(messages)
		try(n, n+1+rand.IntN(apart), all[rand.IntN(len(all))], all[rand.IntN(len(all))])
	}
	t.Logf("%d plays, at worst %s without packets", plays, worst)
}

// The same with faults at any time, messages that are lost, and handshakes of which many fail.
func TestAnyFaults(t *testing.T) {
	worst := time.Duration(0)
	for range map[bool]int{false: 20, true: 1000}[kit.Full()] {
		p := newPlay(t, 5*time.Minute, rand.Uint64())
		p.hook, p.lossy, p.anytime = func(int) bool { return p.random.Float64() < 0.8 }, 0.2, true
		for range 10 {
			p.run(time.Duration(p.random.Int64N(int64(2 * time.Minute))))
			all := faults()
			all[p.random.IntN(len(all))].do(p)
		}
		p.run(time.Minute)
		worst = max(worst, p.worst)
		p.worst, p.age = 0, time.Hour
		for _, s := range p.sides {
			s.SetAge(time.Hour)
		}
		p.check("any faults")
	}
	t.Logf("at worst %s without packets", worst)
}
