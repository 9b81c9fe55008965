// Package supply tests what stands between the sources and what runs in clusters: that
// the same sources give the same programs and the same image, and that known
// vulnerabilities in what they call are found. Licences have their test in
// scripts/licenses, images by digest theirs in test/e2e.
package supply
