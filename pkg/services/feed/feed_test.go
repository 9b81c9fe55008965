package feed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// hashOf returns a valid hash.
func hashOf(n int) string { return Digest(map[string]string{"n": fmt.Sprint(n)}) }

func toldOf(key string, n int) Told {
	return Told{Hash: hashOf(n), Record: &v1alpha1.ServiceRecord{Type: v1alpha1.ClusterSetIP, Labels: map[string]string{"key": key}}}
}

func TestMessagesAreReadAsTheyWereSent(t *testing.T) {
	for _, m := range []*Message{
		{Type: TypeHello, Versions: []int{1}},
		{Type: TypeHave},
		{Type: TypeHave, Hashes: map[string]string{"default.web": hashOf(1)}, More: true},
		{Type: TypeStop},
		{Type: TypePut, Key: "default.web", Hash: hashOf(2), Record: toldOf("default.web", 2).Record},
		{Type: TypeGone, Keys: []string{"default.web", "default.db"}},
		{Type: TypeSynced, Digest: hashOf(3)},
		{Type: TypeBye},
	} {
		raw := m.Encode()
		got, size, err := Read(bytes.NewReader(raw))
		kit.NoError(t, err)
		kit.Check(t, fmt.Sprintf("message of type %d", m.Type), got, m)
		kit.Check(t, "size", size, len(raw))
	}
}

// frame returns the bytes of a message with any header.
func frame(length uint32, version, kind byte, content string) []byte {
	return append(append(binary.BigEndian.AppendUint32(nil, length), version, kind), content...)
}

func TestMessagesAreBounded(t *testing.T) {
	long := make([]byte, maxKey+1)
	for i := range long {
		long[i] = 'a'
	}
	for name, raw := range map[string][]byte{
		"no header":        {0, 0},
		"no content":       frame(2, version, byte(TypePut), ""),
		"too short":        frame(1, version, byte(TypeBye), ""),
		"too long":         frame(MaxFrame+1, version, byte(TypeBye), ""),
		"cut":              frame(100, version, byte(TypeGone), `{"keys":[]}`),
		"no JSON":          frame(5, version, byte(TypeGone), `{"k`),
		"no record":        frame(uint32(2+len(`{"key":"a.b","hash":"aa"}`)), version, byte(TypePut), `{"key":"a.b","hash":"aa"}`),
		"a hash of others": frame(uint32(2+len(`{"hashes":{"a.b":"A="}}`)), version, byte(TypeHave), `{"hashes":{"a.b":"A="}}`),
		"a long key":       frame(uint32(2+len(`{"keys":[""]}`)+len(long)), version, byte(TypeGone), `{"keys":["`+string(long)+`"]}`),
	} {
		m, _, err := Read(bytes.NewReader(raw))
		kit.ErrorIf(t, err == nil, "%s: it is read as %+v", name, m)
	}
	for name, raw := range map[string][]byte{
		"another version": frame(4, version+1, byte(TypePut), "{}"),
		"an unknown type": frame(4, version, byte(TypeBye)+1, "{}"),
	} {
		m, size, err := Read(bytes.NewReader(raw))
		kit.ErrorIf(t, m != nil || err != nil || size != len(raw), "%s: it is not skipped, but %+v, %v", name, m, err)
	}
	huge := &Message{Type: TypePut, Key: "a.b", Hash: hashOf(1), Record: &v1alpha1.ServiceRecord{Annotations: map[string]string{"a": string(make([]byte, MaxFrame))}}}
	kit.ErrorIf(t, huge.Encode() != nil, "a message that is too large is sent")
}

// world is a sender and a receiver, and what the receiver stores.
type world struct {
	t        *testing.T
	now      time.Time
	told     map[string]Told
	sender   *Sender
	receiver *Receiver
	stored   map[string]string
	puts     int
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, now: time.Unix(1e9, 0), told: map[string]Told{}, stored: map[string]string{}}
	w.receiver = NewReceiver(nil)
	w.connect()
	return w
}

// connect opens another connection: the sender starts again, and the receiver says what it has.
func (w *world) connect() {
	w.sender = NewSender(maps.Clone(w.told))
	for _, m := range w.receiver.Have(w.now) {
		w.sender.Receive(m)
	}
}

// restart starts another receiver with what was stored.
func (w *world) restart() {
	w.receiver = NewReceiver(w.stored)
	w.connect()
}

// change changes what is told.
func (w *world) change(key string, n int) {
	w.told = maps.Clone(w.told)
	if w.told[key] = toldOf(key, n); n == 0 {
		delete(w.told, key)
	}
	w.sender.Update(w.told)
}

// deliver delivers at most n messages, and returns whether there was another one.
func (w *world) deliver(n int) bool {
	for ; n > 0; n-- {
		m, wait := w.sender.Next(w.now)
		if m == nil {
			w.now = w.now.Add(min(wait, keyGap))
			return false
		}
		w.receive(m)
	}
	return true
}

func (w *world) receive(m *Message) {
	read, _, err := Read(bytes.NewReader(m.Encode()))
	kit.NoError(w.t, err)
	changes, answers := w.receiver.Receive(read, w.now)
	for _, c := range changes {
		if w.stored[c.Key] = c.Hash; c.Record == nil {
			delete(w.stored, c.Key)
		} else {
			w.puts++
		}
	}
	for _, a := range answers {
		w.sender.Receive(a)
	}
}

// settle delivers everything.
func (w *world) settle() {
	for range 10000 {
		w.deliver(100)
		if w.receiver.IsSynced() && maps.EqualFunc(w.told, w.stored, func(a Told, b string) bool { return a.Hash == b }) {
			return
		}
	}
	w.t.Fatalf("the receiver does not have what is told: %d of %d services, synced: %v", len(w.stored), len(w.told), w.receiver.IsSynced())
}

// Whatever happens between changes, the receiver has in the end what is told.
func TestTheReceiverHasWhatIsTold(t *testing.T) {
	r := kit.Random(t)
	for range 200 {
		w := newWorld(t)
		for range 1 + r.IntN(60) {
			switch r.IntN(6) {
			case 0, 1:
				w.change(fmt.Sprintf("ns.s%d", r.IntN(12)), r.IntN(4))
			case 2:
				w.deliver(r.IntN(5))
			case 3: // what is under way is lost
				w.connect()
			case 4:
				w.restart()
			case 5: // an object that was stored is lost, and that is noticed
				for k := range w.stored {
					delete(w.stored, k)
					w.receiver.Forget(k)
					break
				}
			}
		}
		w.settle()
	}
}

// Nothing is sent again to a receiver that has everything.
func TestAnotherConnectionCostsNoRecord(t *testing.T) {
	w := newWorld(t)
	for i := range v1alpha1.MaxPeerServices {
		w.change(fmt.Sprintf("ns.s%d", i), 1)
	}
	w.settle()
	kit.Check(t, "records", w.puts, v1alpha1.MaxPeerServices)
	w.restart()
	w.settle()
	kit.Check(t, "records after another connection", w.puts, v1alpha1.MaxPeerServices)
	w.sender.Receive(&Message{Type: TypeStop})
	w.change("ns.s0", 2)
	m, _ := w.sender.Next(w.now.Add(time.Hour))
	kit.ErrorIf(t, m != nil, "after a stop, %+v is sent", m)
}

func TestChangesOfOneServiceArePaced(t *testing.T) {
	w := newWorld(t)
	w.change("ns.s", 1)
	w.settle()
	begin, puts := w.now, w.puts
	for n := range 50 {
		w.change("ns.s", 2+n)
		w.deliver(100)
		w.now = w.now.Add(10 * time.Millisecond)
	}
	most := int(w.now.Sub(begin)/keyGap) + 2
	kit.ErrorIf(t, w.puts-puts > most, "50 changes in %s are sent %d times, at most %d are allowed", w.now.Sub(begin), w.puts-puts, most)
	w.settle()
}

// A sender whose digest never matches cannot make the receiver say all the time what it has.
func TestAWrongDigestIsNotAnsweredAllTheTime(t *testing.T) {
	r := NewReceiver(map[string]string{"ns.s": hashOf(1)})
	now := time.Unix(1e9, 0)
	r.Have(now)
	answers := 0
	for range 100 {
		now = now.Add(100 * time.Millisecond)
		_, out := r.Receive(&Message{Type: TypeSynced, Digest: hashOf(9)}, now)
		answers += len(out)
	}
	kit.ErrorIf(t, answers == 0 || answers > 2, "it is answered %d times in 10 s", answers)
}

func TestByeLeavesNothing(t *testing.T) {
	w := newWorld(t)
	w.change("ns.a", 1)
	w.change("ns.b", 1)
	w.settle()
	w.sender.Leave()
	m, _ := w.sender.Next(w.now)
	w.receive(m)
	kit.Check(t, "stored", len(w.stored), 0)
	m, _ = w.sender.Next(w.now)
	kit.ErrorIf(t, m != nil, "after the last message, %+v is sent", m)
}

// A peer that tells more services than allowed gets no more memory.
func TestHashesAreBounded(t *testing.T) {
	r, s := NewReceiver(nil), NewSender(nil)
	for i := range 3 * maxHeld {
		r.Receive(&Message{Type: TypePut, Key: fmt.Sprintf("ns.s%d", i), Hash: hashOf(i), Record: &v1alpha1.ServiceRecord{}}, time.Time{})
		s.Receive(&Message{Type: TypeHave, Hashes: map[string]string{fmt.Sprintf("ns.s%d", i): hashOf(i)}, More: true})
		kit.FatalIf(t, len(r.held) > maxHeld || len(s.incoming) > 2*v1alpha1.MaxPeerServices, "%d and %d hashes are kept", len(r.held), len(s.incoming))
	}
}

// A stream of messages ends with an error, and each message that is read is within the limits.
func FuzzMessages(f *testing.F) {
	f.Add((&Message{Type: TypePut, Key: "a.b", Hash: hashOf(1), Record: toldOf("a.b", 1).Record}).Encode())
	f.Add((&Message{Type: TypeHave, Hashes: map[string]string{"a.b": hashOf(1)}}).Encode())
	f.Add(frame(4, 9, 9, "{}"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		in := bytes.NewReader(stream)
		receiver, sender := NewReceiver(nil), NewSender(nil)
		for {
			m, size, err := Read(in)
			if err != nil {
				kit.ErrorIf(t, !errors.Is(err, ErrMalformed) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF), "%v", err)
				return
			}
			kit.ErrorIf(t, size > MaxFrame+4 || size < 6, "a message has %d bytes", size)
			if m != nil {
				receiver.Receive(m, time.Time{})
				sender.Receive(m)
			}
		}
	})
}
