package fakeapi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// merged is what has become of an object, without the times of its managers and with numbers in place of UIDs.
type merged struct {
	object reflect.Type
	text   string
}

// merges are the results of all APIs. Plays apply the same to the same again and again, and merging takes most of their time.
var merges sync.Map // of string to merged

// remembered returns what a merge makes of an object, nil for none, by applying another one in some manner. It merges what it has not
// merged before. Results are the same but for UIDs, versions and times; an error is not remembered.
func remembered(manner string, before, given runtime.Object, merge func() (runtime.Object, error)) (runtime.Object, error) {
	var was metav1.Object
	uids := uidsOf(given.(metav1.Object))
	if before != nil {
		was = before.DeepCopyObject().(metav1.Object)
		if !was.GetDeletionTimestamp().IsZero() {
			return merge()
		}
		uids = append(uids, uidsOf(was)...)
		was.SetResourceVersion("")
		was.SetGeneration(0)
		was.SetCreationTimestamp(metav1.Time{})
		was.SetManagedFields(withoutTimes(was.GetManagedFields()))
	}
	text, err := json.Marshal([]any{was, given})
	if err != nil {
		return nil, err
	}
	var toNumbers, toUIDs []string
	for i, uid := range uids {
		number := fmt.Sprintf("\x00%d\x00", i) // not in JSON
		toNumbers, toUIDs = append(toNumbers, uid, number), append(toUIDs, number, uid)
	}
	numbers := strings.NewReplacer(toNumbers...)
	key := manner + numbers.Replace(string(text))
	known, isKnown := merges.Load(key)
	if !isKnown {
		now, err := merge()
		if err != nil {
			return nil, err
		}
		copied := now.DeepCopyObject()
		m := copied.(metav1.Object)
		m.SetManagedFields(withoutTimes(m.GetManagedFields()))
		if text, err = json.Marshal(copied); err == nil {
			merges.Store(key, merged{reflect.TypeOf(now).Elem(), numbers.Replace(string(text))})
		}
		return now, err
	}
	now := reflect.New(known.(merged).object).Interface().(runtime.Object)
	if err := json.Unmarshal([]byte(strings.NewReplacer(toUIDs...).Replace(known.(merged).text)), now); err != nil {
		return nil, err
	}
	var managers []metav1.ManagedFieldsEntry
	if before != nil {
		managers = before.(metav1.Object).GetManagedFields()
	}
	setTimes(now.(metav1.Object), managers)
	return now, nil
}

func uidsOf(m metav1.Object) (out []string) {
	for _, owner := range m.GetOwnerReferences() {
		out = append(out, string(owner.UID))
	}
	if uid := m.GetUID(); uid != "" {
		out = append(out, string(uid))
	}
	return out
}

func withoutTimes(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	for i := range entries {
		entries[i].Time = nil
	}
	return entries
}

// setTimes lets managers keep their times whose fields are as before, and gives the others the present one.
func setTimes(m metav1.Object, before []metav1.ManagedFieldsEntry) {
	entries := m.GetManagedFields()
	for i := range entries {
		entries[i].Time = new(metav1.Now().Rfc3339Copy())
		for _, was := range before {
			same := entries[i]
			same.Time = was.Time
			if equality.Semantic.DeepEqual(same, was) {
				entries[i] = same
			}
		}
	}
	m.SetManagedFields(entries)
}
