package probe

import (
	"bytes"
	"crypto/subtle"
	"encoding/json"
	"net/netip"
)

// Questions and answers have this size, or are padded to more. None is answered by more than it has, so that nobody's
// packets are made larger.
const headerSize = 160

// What is to happen on a connection after its first answer.
const (
	// modeAnswer answers further questions.
	modeAnswer = 'a'
	// modeEcho sends back all that comes.
	modeEcho = 'e'
	// modeSink counts what comes, and says in the end how much it was.
	modeSink = 's'
)

// question is a packet of that size that asks who answers.
func question(token string, mode byte, size int) []byte {
	q := make([]byte, max(size, headerSize))
	copy(q[1:], token)
	q[0] = mode
	return q
}

// asks says what a question asks for, and whether it is one of this run.
func asks(q []byte, token string) (mode byte, ok bool) {
	if len(q) < headerSize || len(token) == 0 || subtle.ConstantTimeCompare(q[1:1+len(token)], []byte(token)) == 0 {
		return 0, false
	}
	return q[0], true
}

// reply is what an answer says.
type reply struct {
	Name   string     `json:"n"`
	Source netip.Addr `json:"s"`
}

// answer turns a question into its answer, in place.
func answer(q []byte, r reply) []byte {
	raw, _ := json.Marshal(r) // two texts
	clear(q)
	copy(q, raw)
	return q
}

func parseReply(a []byte) (r reply, err error) {
	err = json.Unmarshal(bytes.TrimRight(a[:min(len(a), headerSize)], "\x00"), &r)
	return r, err
}
