package feed

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/services"
)

const (
	// keyGap is the minimum time between two messages about one service.
	keyGap = 200 * time.Millisecond
	// syncInterval is how often the digest is sent if nothing changes, and haveGap the minimum time between two messages in
	// which the receiver says what it has.
	syncInterval, haveGap = 30 * time.Second, 5 * time.Second
)

// Digest returns the digest of all services, by their keys and hashes.
func Digest(hashes map[string]string) string {
	var raw []byte
	for _, k := range slices.Sorted(maps.Keys(hashes)) {
		raw = append(append(append(append(raw, k...), '='), hashes[k]...), '\n')
	}
	return services.Digest(raw)
}

// Told is a service that the peer may learn.
type Told struct {
	Hash   string
	Record *v1alpha1.ServiceRecord
	// IsTooLarge is set if the record does not fit into a message.
	IsTooLarge bool
}

// NewTold returns a service as it is told to a peer. The hash depends on the ranges by which the peer knows this cluster, too:
// with others, the receiver has to check the addresses again.
func NewTold(r *v1alpha1.ServiceRecord, p *v1alpha1.Peering) Told {
	// Strings, numbers and addresses always encode.
	record, _ := json.Marshal(r)
	ranges, _ := json.Marshal([]any{p.Spec.Local.Pods, p.Spec.Local.ExternalCIDR})
	return Told{Hash: services.Digest(slices.Concat(record, ranges)), Record: r, IsTooLarge: len(record) > MaxRecordBytes}
}

// Sender is the end that tells services. It starts when the receiver has said what it has.
type Sender struct {
	told map[string]Told
	// theirs are the hashes that the receiver has, as far as is known. wants is set while it wants to know more.
	theirs map[string]string
	wants  bool
	// incoming are the hashes of a Have that is not complete.
	incoming map[string]string
	// sent is when each service was last sent.
	sent map[string]time.Time
	// synced is when the digest was last sent, the zero time if it has to be sent again.
	synced  time.Time
	leaving bool
}

// NewSender returns a Sender that tells these services.
func NewSender(told map[string]Told) *Sender {
	return &Sender{told: told, theirs: map[string]string{}, sent: map[string]time.Time{}}
}

// Update replaces the services. The map must not be changed any more.
func (s *Sender) Update(told map[string]Told) { s.told = told }

// Leave makes the Sender tell that there are no services any more.
func (s *Sender) Leave() { s.leaving = true }

// Receive processes a message of the receiver.
func (s *Sender) Receive(m *Message) {
	switch m.Type {
	case TypeHave:
		if s.incoming == nil {
			s.incoming = map[string]string{}
		}
		maps.Copy(s.incoming, m.Hashes)
		if len(s.incoming) > 2*v1alpha1.MaxPeerServices {
			s.incoming = map[string]string{} // nobody has that many: all is sent again
		}
		if !m.More {
			s.theirs, s.incoming, s.wants, s.synced = s.incoming, nil, true, time.Time{}
		}
	case TypeStop:
		s.wants, s.incoming = false, nil
	}
}

// Next returns the next message to send. Without one, it returns how long to wait at most until there may be one.
func (s *Sender) Next(now time.Time) (m *Message, wait time.Duration) {
	if s.leaving {
		s.leaving, s.wants = false, false
		return &Message{Type: TypeBye}, 0
	}
	if !s.wants {
		return nil, syncInterval
	}
	var gone []string
	for k := range s.theirs {
		if _, has := s.told[k]; !has && len(gone) < maxKeys {
			gone = append(gone, k)
		}
	}
	if len(gone) > 0 {
		for _, k := range gone {
			delete(s.theirs, k)
			delete(s.sent, k)
		}
		slices.Sort(gone)
		s.synced = time.Time{}
		return &Message{Type: TypeGone, Keys: gone}, 0
	}
	next, wait := s.oldestDiffering(now)
	if next != "" {
		t := s.told[next]
		s.theirs[next], s.sent[next], s.synced = t.Hash, now, time.Time{}
		return &Message{Type: TypePut, Key: next, Hash: t.Hash, Record: t.Record}, 0
	}
	if wait > 0 {
		return nil, wait
	}
	if due := s.synced.Add(syncInterval); s.synced.IsZero() || !now.Before(due) {
		s.synced = now
		return &Message{Type: TypeSynced, Digest: Digest(s.theirs)}, 0
	}
	return nil, s.synced.Add(syncInterval).Sub(now)
}

// oldestDiffering returns the service that the receiver does not have as it is, and of which nothing was sent for longest. If all such
// services were sent a moment ago, it returns how long to wait.
func (s *Sender) oldestDiffering(now time.Time) (next string, wait time.Duration) {
	for k, t := range s.told {
		if s.theirs[k] == t.Hash {
			continue
		}
		if left := s.sent[k].Add(keyGap).Sub(now); left > 0 {
			wait = min(cmp.Or(wait, left), left)
		} else if next == "" || cmp.Or(s.sent[k].Compare(s.sent[next]), cmp.Compare(k, next)) < 0 {
			next = k
		}
	}
	return next, wait
}

// Change is what a Receiver has learned of a service: a record, or nil if it is not exported any more.
type Change struct {
	Key, Hash string
	Record    *v1alpha1.ServiceRecord
}

// Receiver is the end that learns services.
type Receiver struct {
	// held are the hashes of all that was told, also of what was refused.
	held map[string]string
	// said is when the receiver last said what it has.
	said time.Time
	// isSynced is set if the digest of everything has matched since the last change.
	isSynced bool
}

// NewReceiver returns a Receiver that has services with these hashes.
func NewReceiver(held map[string]string) *Receiver {
	r := &Receiver{held: map[string]string{}}
	maps.Copy(r.held, held)
	return r
}

// IsSynced reports whether the receiver has everything that the sender tells, by the last digest.
func (r *Receiver) IsSynced() bool { return r.isSynced }

// Held returns the hashes of all that was told.
func (r *Receiver) Held() map[string]string { return maps.Clone(r.held) }

// Forget makes the receiver ask for a service again: it was lost.
func (r *Receiver) Forget(key string) {
	delete(r.held, key)
	r.isSynced = false
}

// Have returns messages that say what the receiver has, and that it wants the rest.
func (r *Receiver) Have(now time.Time) (out []*Message) {
	r.said, r.isSynced = now, false
	for part := range slices.Chunk(slices.Sorted(maps.Keys(r.held)), maxKeys) {
		hashes := map[string]string{}
		for _, k := range part {
			hashes[k] = r.held[k]
		}
		out = append(out, &Message{Type: TypeHave, Hashes: hashes, More: true})
	}
	if len(out) == 0 {
		out = []*Message{{Type: TypeHave}}
	}
	out[len(out)-1].More = false
	return out
}

// Receive processes a message of the sender. It returns what has changed, and what to answer.
func (r *Receiver) Receive(m *Message, now time.Time) (changes []Change, answers []*Message) {
	switch m.Type {
	case TypePut:
		r.isSynced = false
		if _, has := r.held[m.Key]; !has && len(r.held) >= maxHeld {
			return nil, nil // the digest never matches: such a peer harms itself only
		}
		r.held[m.Key] = m.Hash
		changes = []Change{{m.Key, m.Hash, m.Record}}
	case TypeGone:
		r.isSynced = false
		for _, k := range m.Keys {
			if _, has := r.held[k]; has {
				delete(r.held, k)
				changes = append(changes, Change{Key: k})
			}
		}
	case TypeBye:
		r.isSynced = true // nothing is told, and so nothing is missing
		for _, k := range slices.Sorted(maps.Keys(r.held)) {
			changes = append(changes, Change{Key: k})
		}
		r.held = map[string]string{}
	case TypeSynced:
		if r.isSynced = m.Digest == Digest(r.held); !r.isSynced && now.Sub(r.said) >= haveGap {
			answers = r.Have(now)
		}
	}
	return changes, answers
}

// maxHeld is how many hashes are kept. It leaves room for services that are refused.
const maxHeld = 2 * v1alpha1.MaxPeerServices
