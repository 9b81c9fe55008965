package rekey

import (
	"bytes"
	"crypto/mlkem"
	"crypto/subtle"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	// earliest is the part of the age after which a new key may be proposed. The rest is random, so that not all
	// tunnels do so at once.
	earliest = 0.75
	// proposeAgain is how long the client waits after an answer that was wrong.
	proposeAgain = 10 * time.Second
	// inVain is how often the client has to call in vain before the server takes the base key. By then one that knows two
	// keys has tried both.
	inVain = 2
	// turnTime is how long a server that is called in vain has one key, and then the other one: WireGuard calls again after 5 s.
	turnTime = 10 * time.Second
	// renewAgain is how long the client waits for a session that is to replace the present one, until it asks for it again. Three
	// round trips may take longer. renewals is how often it asks again.
	renewAgain, renewals = 300 * time.Millisecond, 5
	// Grace is how much older than its age a key may be until it is overdue: as long as WireGuard's sessions last.
	Grace = 3 * time.Minute
)

// attempt is the key that is tried in a search.
type attempt int

const (
	// theRight is the key that the peer has, too, unless one of both has started anew.
	theRight attempt = iota
	// theBase is the one that both have then.
	theBase
	// theNext is one that the server may have taken before it could say so.
	theNext
	// theFormer is the one before it, which a client has that was not told.
	theFormer
)

// Machine is one gateway's side of a tunnel. Times have to be of one monotonic clock.
type Machine struct {
	tunnel Tunnel
	// calls says that this is the client.
	calls bool
	age   time.Duration

	// current is the key that is known to be in use, since when, and which one it is after the base key.
	current Key
	since   time.Time
	epoch   uint64
	// early is a random number from 0 to 1, notBefore when the client may propose.
	early     float64
	notBefore time.Time

	// proposed is what the client's proposal belongs to, nil if none waits for its answer.
	proposed *mlkem.DecapsulationKey768
	// next is the key that was derived and is not known to be in use, nil if there is none. If taken is set, WireGuard
	// has it. The server has derived it from offered, and answers by ciphertext. tooEarly is a
	// proposal that came before it was told the age.
	next                *derived
	taken               bool
	offered, ciphertext []byte
	tooEarly            message

	// searching says that the keys may be different. Then tries is which one WireGuard is to have. The server has it since turned. How
	// often the client has called since is attempts, and how often the server was called in vain is failures.
	searching          bool
	tries              attempt
	formerly           bool // the last one but the base key was theFormer
	turned             time.Time
	attempts, failures int
	// has is what WireGuard has, handshake when its last one was until then. before was the last one when the server's search
	// began, latest the one that it saw last.
	has                       Key
	handshake, before, latest time.Time

	// said is what the peer was told last, spoken that it knows what this is about.
	said   []byte
	spoken bool
	// renew says that the session is to be replaced, renewed when that was last asked for, and left how often it may be
	// asked for again.
	renew   bool
	renewed time.Time
	left    int
}

// New makes the machine of a gateway that starts, with the base key.
func New(t Tunnel, calls bool, now time.Time) *Machine {
	m := &Machine{tunnel: t, calls: calls}
	m.reset(now)
	return m
}

// SetAge says how old a key may become until another one is agreed on. With 0 none is any more: the present one stays
// until a gateway starts anew. Both gateways need to be told.
func (m *Machine) SetAge(age time.Duration) {
	if m.age = age; age == 0 {
		m.proposed = nil
	} else if m.tooEarly.kind == offer {
		_ = m.answer(m.tooEarly) // a malformed one is none
	}
}

// Key is the one that WireGuard is to have.
func (m *Machine) Key() Key {
	switch {
	case m.tries == theBase:
		return m.tunnel.Base
	case m.tries == theNext && m.next != nil:
		return m.next.key
	case m.tries == theFormer:
		return m.current
	}
	return m.right()
}

// right is the key that WireGuard has where the peer's has it, too.
func (m *Machine) right() Key {
	if m.taken {
		return m.next.key
	}
	return m.current
}

// found ends a search: both have the right key.
func (m *Machine) found() { m.searching, m.tries, m.attempts, m.failures = false, theRight, 0, 0 }

// reset goes back to the base key, which is all that the peer knows.
func (m *Machine) reset(now time.Time) {
	m.proposed, m.next, m.taken, m.offered, m.ciphertext, m.tooEarly = nil, nil, false, nil, nil, message{}
	m.current, m.epoch, m.since, m.notBefore = m.tunnel.Base, 0, now, now
	m.found()
}

// use notes that the next key is in use. The one before is forgotten.
func (m *Machine) use(now time.Time) {
	m.current, m.epoch, m.since, m.early = m.next.key, m.epoch+1, now, rand.Float64()
	m.next, m.taken, m.offered, m.ciphertext = nil, false, nil, nil
	m.found()
}

// take has WireGuard use the next key. A search goes on: the session may be one of another key.
func (m *Machine) take() {
	m.taken, m.tries, m.attempts, m.failures = true, theRight, 0, 0
	if m.calls && m.current == m.tunnel.Base {
		m.renew, m.left = true, renewals
	}
}

// Applied says which key WireGuard has now, and when its last handshake was until then.
func (m *Machine) Applied(k Key, handshake time.Time) { m.has, m.handshake = k, handshake }

// Renew says that the session is to be replaced at once, and not when WireGuard does so by itself: it is one of the base
// key. It says so once, and again a little later if there is no other one.
func (m *Machine) Renew(now time.Time) bool {
	renew := m.renew
	if m.renew = false; renew {
		m.renewed = now
	}
	return renew
}

// Seen is what was seen of the tunnel.
type Seen struct {
	// Answered says that the peer's gateway has answered, Asked that it has asked for an answer, and Received that anything has
	// come from it, since the last look. Only what Received is about may be without a session.
	Answered, Asked, Received bool
	// Missing says that answers are missing.
	Missing bool
	// RTT is how long answers take, 0 if that is not known.
	RTT time.Duration
	// Handshake is when WireGuard last agreed on a session, by any clock; the zero value if it has not.
	Handshake time.Time
}

// Look takes what was seen.
func (m *Machine) Look(now time.Time, s Seen) {
	if !m.calls {
		m.search(now, s)
		return
	}
	// The client's WireGuard completes a handshake only with the key that it has at that moment.
	if m.has == m.Key() && !s.Handshake.IsZero() && !s.Handshake.Equal(m.handshake) {
		switch {
		case m.taken && m.tries == theRight, s.Answered && m.tries == theNext:
			m.use(now)
		case s.Answered && m.tries == theBase:
			m.reset(now)
		case s.Answered && m.searching:
			m.found()
			m.said = nil // the server searches, too
		}
	}
	// WireGuard itself would ask for a session again after 5 s.
	if m.taken && m.tries == theRight && m.left > 0 && !m.renewed.IsZero() && now.Sub(m.renewed) >= max(renewAgain, 3*s.RTT) {
		m.renew, m.left = true, m.left-1
	}
	m.propose(now)
}

// search takes the base key, which every client has, when the client calls in vain. If that does not help, the client may know no
// key but the right one, or the one before it: its agent is away, and WireGuard goes on. So the server has them in turn until there is
// a session. Which key was right the client says.
func (m *Machine) search(now time.Time, s Seen) {
	isNew := !s.Handshake.Equal(m.latest)
	m.latest = s.Handshake
	switch {
	case isNew: // answers are about to come
		m.failures = 0
	case s.Answered, s.Asked:
		m.failures = 0
		if m.searches() {
			m.found() // by the session before
		}
	case s.Received:
		m.failures++
	}
	switch {
	case m.searches():
		if now.Sub(m.turned) >= turnTime {
			m.turn(now)
		}
	case m.failures >= inVain && s.Missing && m.tries != theBase:
		m.before, m.searching = s.Handshake, true
		m.turn(now)
	}
}

// turn has the server try another one of its keys.
func (m *Machine) turn(now time.Time) {
	m.turned = now
	switch {
	case m.tries != theBase:
		m.tries = theBase
	case m.taken && m.current != m.tunnel.Base && !m.formerly:
		m.tries, m.formerly = theFormer, true
	default:
		m.tries, m.formerly = theRight, false
	}
}

// searches says that the server has made no session since its search began: if there is one, it is the one before.
func (m *Machine) searches() bool { return m.searching && m.latest.Equal(m.before) }

// Redial says that the client is about to start a handshake anew, as the tunnel does not work. It has the base key
// first, as the server has most likely started anew, and then the others that it knows. It returns whether the next attempt should follow soon.
func (m *Machine) Redial() (another bool) {
	keys := []attempt{theBase}
	if m.right() != m.tunnel.Base {
		keys = append(keys, theRight)
	}
	if m.next != nil && !m.taken {
		keys = append(keys, theNext)
	}
	i := m.attempts % len(keys)
	m.searching, m.tries = true, keys[i]
	m.attempts++
	return i+1 < len(keys)
}

// propose makes a proposal when it is time.
func (m *Machine) propose(now time.Time) {
	if m.age == 0 || m.proposed != nil || m.next != nil || now.Before(m.notBefore) {
		return
	}
	part := time.Duration(float64(m.age) * (earliest + (1-earliest)*m.early))
	if m.current != m.tunnel.Base && now.Sub(m.since) < part {
		return
	}
	// It fails only without random numbers, and those never fail (crypto/rand).
	m.proposed, _ = mlkem.GenerateKey768()
}

// Hear takes what the peer has said. An error says why that is of no use. WireGuard's key is the same as before then.
func (m *Machine) Hear(b []byte, now time.Time) error {
	said, known, err := decode(b)
	if err != nil || !known {
		return err
	}
	m.spoken = true
	if m.calls {
		return m.hearAsClient(said, now)
	}
	return m.hearAsServer(said, now)
}

func (m *Machine) hearAsClient(said message, now time.Time) error {
	switch is := m.names(said.name); {
	case m.next != nil && !m.taken && is(m.next.key):
		m.take()
	case is(m.tunnel.Base) && m.right() != m.tunnel.Base:
		m.reset(now) // the server has started anew
	case said.kind == hello && m.next != nil && !m.taken:
		m.next = nil // so has it, before it took the next key
	}
	if said.kind == answer && m.proposed != nil {
		return m.hearAnswer(said, now)
	}
	return nil
}

func (m *Machine) hearAnswer(said message, now time.Time) error {
	shared, err := m.proposed.Decapsulate(said.ciphertext)
	if err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	d := m.tunnel.derive(m.current, shared, m.epoch+1, m.proposed.EncapsulationKey().Bytes(), said.ciphertext)
	m.proposed = nil
	if subtle.ConstantTimeCompare(d.server[:], said.tag[:]) != 1 {
		m.notBefore = now.Add(proposeAgain)
		return errOtherKey
	}
	m.next = &d
	return nil
}

func (m *Machine) hearAsServer(said message, now time.Time) error {
	if said.kind == accept && m.next != nil && subtle.ConstantTimeCompare(m.next.client[:], said.tag[:]) == 1 {
		m.take()
		return nil
	}
	switch is := m.names(said.name); {
	case m.taken && is(m.next.key):
		m.use(now)
	case is(m.tunnel.Base) && m.right() != m.tunnel.Base:
		m.reset(now) // the client has started anew
	case is(m.current):
		m.found()
	}
	if said.kind != offer {
		return nil
	}
	return m.answer(said)
}

// answer derives the key that follows from the client's proposal.
func (m *Machine) answer(said message) error {
	if m.tooEarly = (message{}); m.age == 0 {
		m.tooEarly = said
	}
	if m.age == 0 || m.taken || bytes.Equal(said.encapsulation, m.offered) {
		return nil
	}
	key, err := mlkem.NewEncapsulationKey768(said.encapsulation)
	if err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	shared, ciphertext := key.Encapsulate()
	d := m.tunnel.derive(m.current, shared, said.epoch, said.encapsulation, ciphertext)
	m.next, m.offered, m.ciphertext = &d, bytes.Clone(said.encapsulation), ciphertext
	return nil
}

// errOtherKey says that the peer has derived another key: its key before is another one.
var errOtherKey = errors.New("the peer's gateway has agreed on another key")

// names says whether a name is a key's.
func (m *Machine) names(name tag) func(Key) bool {
	return func(k Key) bool { return m.tunnel.name(k) == name }
}

// Say returns what the peer is to be told, nil if that is what it was told last.
func (m *Machine) Say() []byte {
	if m.age == 0 && !m.spoken {
		return nil // it may be of a version that knows nothing of this
	}
	out := message{kind: hello, name: m.tunnel.name(m.right())}
	switch {
	case m.proposed != nil:
		out.kind, out.epoch, out.encapsulation = offer, m.epoch+1, m.proposed.EncapsulationKey().Bytes()
	case m.next != nil && m.calls: // also when it was taken: it is not known to be in use
		out.kind, out.name, out.tag = accept, m.tunnel.name(m.current), m.next.client
	case m.next != nil && !m.taken:
		out.kind, out.ciphertext, out.tag = answer, m.ciphertext, m.next.server
	}
	b := out.encode()
	if bytes.Equal(b, m.said) {
		return nil
	}
	m.said = b
	return b
}

// State is what is known of the key in use.
type State struct {
	// Agreed is since when it is in use, the zero value if it is the base key.
	Agreed time.Time
	// Overdue says that there should be another one by now.
	Overdue bool
}

// State says how fresh the key is.
func (m *Machine) State(now time.Time) (s State) {
	if m.current != m.tunnel.Base && (!m.searching || !m.calls && m.searches()) {
		s.Agreed = m.since
	}
	s.Overdue = m.age > 0 && now.Sub(m.since) > m.age+Grace
	return s
}
