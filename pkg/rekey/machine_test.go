package rekey

import (
	"bytes"
	"crypto/mlkem"
	"fmt"
	"strings"
	"testing"
	"time"
)

var start = time.Unix(1e9, 0)

// pair makes both gateways of a tunnel.
func pair(age time.Duration) (client, server *Machine) {
	client, server = New(testTunnel, true, start), New(testTunnel, false, start)
	client.SetAge(age)
	server.SetAge(age)
	return client, server
}

// talk passes on what both say until they are silent. Handshakes happen at once.
func talk(t *testing.T, client, server *Machine, now time.Time) {
	t.Helper()
	handshake := now
	for said := true; said; {
		said = false
		for _, way := range [][2]*Machine{{client, server}, {server, client}} {
			handshake = handshake.Add(time.Millisecond)
			way[0].Look(now, Seen{Answered: true, Handshake: handshake})
			if b := way[0].Say(); b != nil {
				said = true
				if err := way[1].Hear(b, now); err != nil {
					t.Fatal(err)
				}
			}
			way[0].Applied(way[0].Key(), handshake)
			way[1].Applied(way[1].Key(), handshake)
		}
	}
}

// agreed is a pair with a fresh key.
func agreed(t *testing.T) (client, server *Machine) {
	t.Helper()
	client, server = pair(time.Hour)
	talk(t, client, server, start)
	if k := client.Key(); k == testTunnel.Base || k != server.Key() || client.State(start).Agreed.IsZero() || server.State(start).Agreed.IsZero() {
		t.Fatalf("not agreed: %+v, %+v", client.State(start), server.State(start))
	}
	return client, server
}

// say returns what a machine says.
func say(t *testing.T, m *Machine, want kind) message {
	t.Helper()
	m.Look(start, Seen{})
	said, known, err := decode(m.Say())
	if err != nil || !known || said.kind != want {
		t.Fatalf("says %d, want %d: %v", said.kind, want, err)
	}
	return said
}

func hear(t *testing.T, m *Machine, said message) {
	t.Helper()
	if err := m.Hear(said.encode(), start); err != nil {
		t.Fatal(err)
	}
}

// Both derive the same only of the same: the key before, the tunnel, and all that was said.
func TestDerive(t *testing.T) {
	shared, said, cipher := []byte(strings.Repeat("s", 32)), []byte("encapsulation key"), []byte("ciphertext")
	want := testTunnel.derive(Key{7}, shared, 3, said, cipher)
	if want != testTunnel.derive(Key{7}, shared, 3, said, cipher) || want.client == want.server {
		t.Error("not the same again, or both show the same")
	}
	others := []derived{
		testTunnel.derive(Key{8}, shared, 3, said, cipher), testTunnel.derive(Key{7}, said, 3, said, cipher), testTunnel.derive(Key{7}, shared, 4, said, cipher),
		testTunnel.derive(Key{7}, shared, 3, cipher, said), testTunnel.derive(Key{7}, shared, 3, said, said),
	}
	for _, tunnel := range []Tunnel{{Plane: 2, Client: testTunnel.Client, Server: testTunnel.Server}, {Plane: 1, Client: testTunnel.Server, Server: testTunnel.Client}} {
		others = append(others, tunnel.derive(Key{7}, shared, 3, said, cipher))
		if tunnel.name(Key{7}) == testTunnel.name(Key{7}) {
			t.Errorf("in tunnel %v a key has the same name", tunnel.Plane)
		}
	}
	for i, other := range others {
		if other.key == want.key || other.client == want.client || other.server == want.server {
			t.Errorf("of something else, %d, follows the same", i)
		}
	}
	if name := testTunnel.name(want.key); bytes.Contains(want.key[:], name[:]) || name == want.client || name == want.server {
		t.Error("a name tells of the key")
	}
}

func TestKeysAreNotPrinted(t *testing.T) {
	k := Key([]byte("0123456789abcdef0123456789abcdef"))
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, v := range []any{k, &k, Tunnel{Base: k}} {
			if s := fmt.Sprintf(format, v); strings.Contains(s, "0123") || strings.Contains(s, "48") {
				t.Errorf("%s: %s", format, s)
			}
		}
	}
}

// Gateways that are not to agree do not, and say nothing to one that may not know of it.
func TestOff(t *testing.T) {
	client, server := pair(0)
	talk(t, client, server, start)
	if client.said != nil || server.said != nil {
		t.Error("something is said")
	}
	client.SetAge(time.Hour)
	talk(t, client, server, start)
	if client.Key() != testTunnel.Base || client.State(start).Overdue || !client.State(start.Add(2*time.Hour)).Overdue {
		t.Errorf("the server is not to agree, and the client knows %+v", client.State(start.Add(2*time.Hour)))
	}
	server.SetAge(time.Hour)
	talk(t, client, server, start)
	key := client.Key()
	if key == testTunnel.Base || key != server.Key() {
		t.Error("not agreed when both are to")
	}
	client.SetAge(0)
	server.SetAge(0)
	talk(t, client, server, start.Add(1000*time.Hour))
	if client.Key() != key || server.Key() != key || client.State(start.Add(1000*time.Hour)).Overdue {
		t.Error("the last key is not kept")
	}
}

// A key is replaced between three quarters of its age and its age.
func TestAge(t *testing.T) {
	client, server := agreed(t)
	key := client.Key()
	talk(t, client, server, start.Add(44*time.Minute))
	if client.Key() != key {
		t.Error("replaced too early")
	}
	talk(t, client, server, start.Add(time.Hour))
	if client.Key() == key || client.Key() != server.Key() || client.epoch != 2 {
		t.Errorf("key %d after an hour", client.epoch)
	}
	for _, m := range []*Machine{client, server} {
		if m.next != nil || m.proposed != nil || m.offered != nil || m.ciphertext != nil || m.current == key {
			t.Error("what is not in use is remembered")
		}
		late := start.Add(2*time.Hour + Grace)
		if m.State(late).Overdue || !m.State(late.Add(time.Second)).Overdue {
			t.Error("overdue at another time than said")
		}
	}
}

// One that has another key before does not get in, whoever it is.
func TestOtherKeyBefore(t *testing.T) {
	client, _ := pair(time.Hour)
	other := testTunnel
	other.Base = Key{66}
	server := New(other, false, start)
	server.SetAge(time.Hour)
	hear(t, server, say(t, client, offer))
	if err := client.Hear(server.Say(), start); err != errOtherKey || client.next != nil {
		t.Errorf("the client takes it: %v", err)
	}
	if client.Look(start.Add(9*time.Second), Seen{}); client.proposed != nil {
		t.Error("the client proposes again at once")
	}
	if client.Look(start.Add(proposeAgain), Seen{}); client.proposed == nil {
		t.Error("the client does not propose again")
	}
	// Nor does a client that accepts without knowing the key.
	client, server = pair(time.Hour)
	hear(t, server, say(t, client, offer))
	hear(t, server, message{kind: accept, name: testTunnel.name(testTunnel.Base)})
	if server.taken {
		t.Error("the server takes a key that the client has not shown to have")
	}
}

// The server's search.
func TestSearch(t *testing.T) {
	for name, tt := range map[string]struct {
		do func(client, server *Machine)
		// base says that WireGuard has the base key then, sure that the server knows whether the session is by a fresh one.
		base, sure bool
	}{
		"called in vain once": {func(_, s *Machine) { s.Look(start, Seen{Received: true, Missing: true, Handshake: start}) }, false, true},
		"silence": {func(_, s *Machine) {
			for range 9 {
				s.Look(start, Seen{Missing: true, Handshake: start})
			}
		}, false, true},
		"it answers now and then": {func(_, s *Machine) {
			for range 9 {
				s.Look(start, Seen{Received: true, Handshake: start})
				s.Look(start, Seen{Answered: true, Handshake: start})
			}
			s.Look(start, Seen{Received: true, Missing: true, Handshake: start})
		}, false, true},
		"called in vain twice": {func(_, s *Machine) { inVainTwice(s) }, true, true},
		"and twice again":      {func(_, s *Machine) { inVainTwice(s); inVainTwice(s) }, true, true},
		"in vain for long":     {func(_, s *Machine) { inVainTwice(s); s.Look(start.Add(turnTime), Seen{Handshake: start}) }, false, true},
		"and for longer": {func(_, s *Machine) {
			inVainTwice(s)
			s.Look(start.Add(turnTime), Seen{Handshake: start})
			s.Look(start.Add(2*turnTime), Seen{Handshake: start})
		}, true, true},
		"the client asks, and gets no answer": {func(_, s *Machine) {
			for range 9 {
				s.Look(start, Seen{Asked: true, Received: true, Missing: true, Handshake: start})
			}
		}, false, true},
		"the session before goes on, one way": {func(_, s *Machine) { inVainTwice(s); s.Look(start, Seen{Asked: true, Handshake: start}) }, false, true},
		"the session before goes on":          {func(_, s *Machine) { inVainTwice(s); s.Look(start, Seen{Answered: true, Handshake: start}) }, false, true},
		"a new session":                       {func(_, s *Machine) { inVainTwice(s); s.Look(start, Seen{Answered: true, Handshake: start.Add(1)}) }, true, false},
		"a new session before": {func(_, s *Machine) {
			s.Look(start, Seen{Received: true, Missing: true, Handshake: start})
			s.Look(start, Seen{Received: true, Missing: true, Handshake: start.Add(1)})
			s.Look(start, Seen{Received: true, Missing: true, Handshake: start.Add(1)})
		}, false, true},
		"the client says that it is by the right key": {func(c, s *Machine) {
			inVainTwice(s)
			s.Look(start, Seen{Answered: true, Handshake: start.Add(1)})
			_ = s.Hear(c.said, start)
		}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := agreed(t)
			server.Look(start, Seen{Answered: true, Handshake: start})
			tt.do(client, server)
			if isBase := server.Key() == testTunnel.Base; isBase != tt.base {
				t.Errorf("the base key: %t", isBase)
			}
			if state := server.State(start); state.Agreed.IsZero() == tt.sure {
				t.Errorf("it says %+v", state)
			}
		})
	}
}

func inVainTwice(s *Machine) {
	for range 2 {
		s.Look(start, Seen{Received: true, Missing: true, Handshake: start})
	}
}

// The client's search begins with the base key each time, and the right one follows soon.
func TestRedial(t *testing.T) {
	client, _ := agreed(t)
	right := client.Key()
	for range 2 {
		for i, want := range []Key{testTunnel.Base, right, testTunnel.Base, right} {
			if another := client.Redial(); client.Key() != want || another != (want != right) {
				t.Errorf("attempt %d has another key, or another one follows: %t", i, another)
			}
		}
		client.Applied(client.Key(), time.Time{})
		client.Look(start, Seen{Answered: true, Handshake: start.Add(5)})
		if client.Say() == nil {
			t.Error("the server is not told that it is the right key")
		}
	}
	client.Redial()
	client.Applied(client.Key(), time.Time{})
	if client.Look(start, Seen{Answered: true}); client.current != right {
		t.Error("there was no handshake by the base key")
	}
	client.Look(start, Seen{Answered: true, Handshake: start.Add(5)})
	if s := client.State(start); client.Key() != testTunnel.Base || !s.Agreed.IsZero() || client.proposed == nil {
		t.Errorf("after a handshake by the base key: %+v", s)
	}
	if client.Redial() {
		t.Error("with one key another attempt is to follow soon")
	}
}

// What comes twice, or late, changes nothing.
func TestAgain(t *testing.T) {
	client, server := pair(time.Hour)
	offered := say(t, client, offer)
	hear(t, server, offered)
	answered := say(t, server, answer)
	hear(t, server, offered)
	if server.Say() != nil {
		t.Error("the same proposal has another answer")
	}
	hear(t, client, answered)
	accepted := say(t, client, accept)
	hear(t, client, answered)
	if client.Say() != nil {
		t.Error("the client says something else after a second answer")
	}
	hear(t, server, accepted)
	taken := say(t, server, hello)
	for range 2 {
		hear(t, server, accepted)
		offered.name, offered.encapsulation = tag{}, otherOffer(t).encapsulation
		hear(t, server, offered)
		if server.Say() != nil || !server.taken {
			t.Error("the server does not keep the key that it has taken")
		}
	}
	hear(t, client, taken)
	if !client.taken || !client.Renew(start) || client.Renew(start) {
		t.Error("the client does not take the key, or does not renew the session once")
	}
	client.Applied(client.Key(), start)
	for _, tt := range []struct {
		after, rtt time.Duration
		again      bool
	}{{renewAgain - 1, 0, false}, {renewAgain, time.Second, false}, {renewAgain, 0, true}, {renewAgain + 1, 0, false}} {
		client.Look(start.Add(tt.after), Seen{RTT: tt.rtt, Handshake: start})
		if again := client.Renew(start.Add(tt.after)); again != tt.again {
			t.Errorf("%s later, it renews the session again: %t", tt.after, again)
		}
	}
}

// A server that has taken the next key takes the base key when it is called in vain. It has the next one again when the client shows once
// more that it knows it, and does not say that the session is by a fresh one.
func TestAcceptedAgain(t *testing.T) {
	client, server := agreed(t)
	server.Look(start, Seen{Answered: true, Handshake: start})
	later := start.Add(time.Hour)
	client.Look(later, Seen{})
	for range 2 {
		if err := server.Hear(client.Say(), later); err != nil {
			t.Fatal(err)
		}
		if b := server.Say(); b != nil {
			if err := client.Hear(b, later); err != nil {
				t.Fatal(err)
			}
		}
		if server.taken {
			break
		}
	}
	accepted, _, err := decode(client.said)
	if err != nil || accepted.kind != accept || !server.taken {
		t.Fatalf("not taken: %v", err)
	}
	next := server.Key()
	inVainTwice(server)
	if server.Key() != testTunnel.Base {
		t.Fatal("it does not take the base key")
	}
	server.Look(start, Seen{Answered: true, Handshake: start.Add(1)})
	hear(t, server, accepted)
	if state := server.State(start); server.Key() != next || !state.Agreed.IsZero() {
		t.Errorf("the next key: %t; %+v", server.Key() == next, state)
	}
	server.Look(start, Seen{Handshake: start.Add(1)})
	inVain := Seen{Received: true, Missing: true, Handshake: start.Add(1)}
	for range 2 {
		server.Look(start, inVain)
	}
	if server.Key() != testTunnel.Base {
		t.Error("called in vain again, it does not take the base key")
	}
}

// otherOffer is a proposal of another client.
func otherOffer(t *testing.T) message {
	t.Helper()
	client, _ := pair(time.Hour)
	return say(t, client, offer)
}

func TestDecode(t *testing.T) {
	sizes := map[kind]int{hello: 17, offer: 17 + 8 + 1184, answer: 17 + 1088 + 16, accept: 33}
	for k, size := range sizes {
		b := append([]byte{byte(k)}, make([]byte, size-1)...)
		if m, known, err := decode(b); err != nil || !known || !bytes.Equal(m.encode(), b) || len(b) > MaxMessage {
			t.Errorf("kind %d: %+v, %t, %v", k, m, known, err)
		}
		for _, bad := range [][]byte{b[:size-1], append(bytes.Clone(b), 0), b[:1], nil} {
			if _, _, err := decode(bad); err == nil {
				t.Errorf("kind %d of %d bytes is taken", k, len(bad))
			}
		}
	}
	if _, known, err := decode(append([]byte{9}, make([]byte, 90)...)); known || err != nil {
		t.Errorf("of a later version: %t, %v", known, err)
	}
}

// Whatever the peer says, WireGuard has the key before, or one that both have derived.
func FuzzHear(f *testing.F) {
	for _, k := range []kind{hello, offer, answer, accept} {
		m := message{kind: k, encapsulation: make([]byte, mlkem.EncapsulationKeySize768), ciphertext: make([]byte, mlkem.CiphertextSize768)}
		f.Add(m.encode(), byte(k))
	}
	f.Fuzz(func(t *testing.T, b []byte, state byte) {
		client, server := pair(time.Hour)
		if state&1 > 0 {
			talk(t, client, server, start)
		}
		if state&2 > 0 {
			client.Look(start.Add(time.Hour), Seen{})
			_ = server.Hear(client.Say(), start)
			if state&4 > 0 {
				_ = client.Hear(server.Say(), start)
			}
		}
		for _, m := range []*Machine{client, server} {
			before := m.Key()
			if err := m.Hear(b, start); err != nil && m.Key() != before {
				t.Error("an error has changed the key")
			}
			if k := m.Key(); k != before && k != testTunnel.Base && (m.next == nil || k != m.next.key) {
				t.Error("a key that nobody has derived")
			}
			if said := m.Say(); len(said) > MaxMessage {
				t.Errorf("%d bytes are said", len(said))
			}
		}
	})
}
